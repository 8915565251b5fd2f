"""``%%gpu turn`` in real kernels: one at a time, in order, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from genv_jupyter.api import rendezvous
from tests.integration.driven import driven_server, fake_driver  # noqa: F401 (fixtures)
from tests.integration.kernels import Ran, ServedKernel, Server

__all__ = ["fake_driver"]

SHARED = "%gpu attach --memory 4G --device 0"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


class Log:
    """What the cells write down when they begin and end, and what ends them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.file.touch()

    @property
    def file(self) -> Path:
        return self.path / "log"

    def cell(self, name: str, *, waits: bool = False, head: str = "%%gpu turn") -> str:
        """Return a cell that notes its begin and end; with ``waits`` it ends when told."""
        note = f"n = os.write(file, b'{name} %s\\n')"
        wait = f"while not os.path.exists({str(self.path / name)!r}): time.sleep(0.01)"
        return "\n".join(
            (
                head,
                "import os, time",
                f"file = os.open({str(self.file)!r}, os.O_WRONLY | os.O_APPEND)",
                note % "begins",
                wait if waits else "time.sleep(0.05)",
                note % "ends",
            )
        )

    def end(self, name: str) -> None:
        (self.path / name).touch()

    @property
    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()

    def wait(self, line: str) -> None:
        wait_for(lambda: line in self.lines)


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it did not happen")
        time.sleep(0.02)


def sharing(server: Server, *names: str) -> list[ServedKernel]:
    kernels = [server.kernel(name) for name in names]
    for kernel in kernels:
        assert kernel.run(SHARED).ok
        kernel.run("%gpu")
    return kernels


def begin_waiting(kernel: ServedKernel, code: str) -> tuple[str, str]:
    """Start a cell that has to wait; return its id, and what it says of the waiting."""
    sent = kernel.begin(code)
    while True:
        message = kernel.client.get_iopub_msg(timeout=30)
        if message["msg_type"] == "display_data":
            text: str = message["content"]["data"]["text/plain"]
            assert "<div" in message["content"]["data"]["text/html"]
            return sent, " ".join(text.split())


def broker_pid() -> int:
    with rendezvous.connect() as sock:
        return rendezvous.peer(sock)[0]


def test_one_at_a_time_in_the_order_of_arrival(server: Server, log: Log) -> None:
    first, second, third = sharing(server, "first", "second", "third")
    running = first.begin(log.cell("first", waits=True))
    log.wait("first begins")
    waiting, said = begin_waiting(second, log.cell("second"))
    assert said.startswith("Waiting for the turn on GPU 0: first.ipynb (")
    assert ") has it since " in said
    later, said = begin_waiting(third, log.cell("third"))
    assert "1 waits before you" in said
    assert log.lines == ["first begins"]
    log.end("first")
    for kernel, sent in ((first, running), (second, waiting), (third, later)):
        assert kernel.finish(sent).ok
    assert log.lines == [
        f"{name} {what}" for name in ("first", "second", "third") for what in ("begins", "ends")
    ]
    assert "Waiting" not in first.run(log.cell("again")).text, "nobody is there to wait for"


def test_cell_runs_as_any_other(server: Server) -> None:
    (kernel,) = sharing(server, "llm")

    def turn(body: str) -> Ran:
        return kernel.run(f"%%gpu turn\n{body}")

    assert turn("x = 6\nx * 7").text == "42"
    assert kernel.value("_") == 42, "as Out of this cell"
    assert turn("x;").text == ""
    assert turn("x\nx + 1").text == "7", "the last expression only"
    assert turn("%time y = 5\n!echo shell\nprint(y)").stdout.endswith("5\n")
    assert turn("%%capture out\nprint('caught')").stdout == ""
    assert kernel.value("out.stdout") == "caught\n"
    failed = turn("x = 1\n\n\n1 / 0")
    assert (failed.status, failed.error) == ("error", "division by zero")
    text = "\n".join(failed.traceback)
    assert "line 5" in text and "interactiveshell" not in text and "genv_jupyter" not in text
    assert turn("1 +").status == "error"
    assert "SyntaxError" in "\n".join(turn("1 +").traceback)
    assert turn("raise KeyboardInterrupt").status == "error"
    refused = turn("import asyncio\nawait asyncio.sleep(0)")
    assert " ".join(refused.traceback) == refused.error
    assert "async with genv_jupyter.turn():" in refused.error
    nested = kernel.run(
        "import asyncio, genv_jupyter\nasync with genv_jupyter.turn():\n"
        "    await asyncio.sleep(0)\n    print('ran')"
    )
    assert nested.stdout == "ran\n"
    assert kernel.run("1 + 1").text == "2"
    for line, word in (("%%gpu t", "turn"), ("%%gpu turn -", "--timeout")):
        completed = kernel.client.complete(line, reply=True, timeout=30)
        assert word in completed["content"]["matches"], line


def test_error_is_told_once_and_ends_the_turn(server: Server, log: Log) -> None:
    first, second = sharing(server, "first", "second")
    sent = first.begin("%%gpu turn\nraise ValueError('once')")
    errors, idle = 0, False
    while not idle:
        message = first.client.get_iopub_msg(timeout=30)
        errors += message["msg_type"] == "error"
        idle = message["content"].get("execution_state") == "idle"
        idle = idle and message["parent_header"].get("msg_id") == sent
    assert errors == 1
    assert second.run(log.cell("second")).ok


def test_killed_holder_is_passed_over_though_its_child_lives(server: Server, log: Log) -> None:
    first, second = sharing(server, "first", "second")
    code = log.cell("first", waits=True)
    # Forked, not started anew: it has the connection open as long as it lives.
    fork = "import os, signal\nif (child := os.fork()) == 0:\n    signal.pause()"
    head, _, rest = code.partition("\n")
    first.begin(f"{head}\n{fork}\n{rest}")
    log.wait("first begins")
    waiting, _ = begin_waiting(second, log.cell("second"))
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(first.pid, signal.SIGKILL)
    try:
        log.wait("second ends")
        assert second.finish(waiting).ok
        assert log.lines == ["first begins", "second begins", "second ends"]
        assert any(Path(f"/proc/{child}").exists() for child in children), "it was to live on"
    finally:
        for child in children:
            os.kill(int(child), signal.SIGKILL)


def test_killed_and_interrupted_waiters_leave_the_line(server: Server, log: Log) -> None:
    first, second, third, fourth = sharing(server, "first", "second", "third", "fourth")
    running = first.begin(log.cell("first", waits=True))
    log.wait("first begins")
    begin_waiting(second, log.cell("second"))
    waiting, _ = begin_waiting(third, log.cell("third"))
    last, said = begin_waiting(fourth, log.cell("fourth"))
    assert "2 wait before you" in said
    os.kill(second.pid, signal.SIGKILL)
    third.manager.interrupt_kernel()
    left = third.finish(waiting)
    assert " ".join(left.traceback) == left.error
    assert left.error == "You have left the line; the cell was not run."
    log.end("first")
    assert first.finish(running).ok and fourth.finish(last).ok
    assert log.lines == ["first begins", "first ends", "fourth begins", "fourth ends"]


def test_cell_that_awaits_can_be_interrupted_too(server: Server, log: Log) -> None:
    first, second = sharing(server, "first", "second")
    running = first.begin(log.cell("first", waits=True))
    log.wait("first begins")
    waiting, said = begin_waiting(
        second, "import genv_jupyter\nasync with genv_jupyter.turn():\n    print('ran')"
    )
    assert "first.ipynb" in said, "its output belongs to the cell, though a thread waits"
    second.manager.interrupt_kernel()
    left = second.finish(waiting)
    assert left.status == "error" and left.stdout == ""
    third, said = begin_waiting(second, log.cell("second"))
    assert "wait" not in said.removeprefix("Waiting"), "what was interrupted has left the line"
    log.end("first")
    assert first.finish(running).ok and second.finish(third).ok


def test_broker_killed_twice_neither_loses_the_turn_nor_blocks(server: Server, log: Log) -> None:
    first, second, third = sharing(server, "first", "second", "third")
    running = first.begin(log.cell("first", waits=True))
    log.wait("first begins")
    waiting, _ = begin_waiting(second, log.cell("second"))
    later, _ = begin_waiting(third, log.cell("third"))
    for _ in range(2):
        kill_broker()
        time.sleep(2.5)  # more than a new broker waits for those who come back
        assert log.lines == ["first begins"], "there are never two holders"
    log.end("first")
    for kernel, sent in ((first, running), (second, waiting), (third, later)):
        assert kernel.finish(sent).ok
    assert log.lines[2:] == ["second begins", "second ends", "third begins", "third ends"]


def kill_broker() -> None:
    """Kill the broker; those who wait start another."""
    killed = broker_pid()
    os.kill(killed, signal.SIGKILL)

    def another_listens() -> bool:
        try:
            return broker_pid() != killed
        except OSError:
            return False

    wait_for(another_listens)


def test_holder_and_broker_killed_together(server: Server, log: Log) -> None:
    first, second = sharing(server, "first", "second")
    first.begin(log.cell("first", waits=True))
    log.wait("first begins")
    waiting, _ = begin_waiting(second, log.cell("second"))
    os.kill(broker_pid(), signal.SIGKILL)
    os.kill(first.pid, signal.SIGKILL)
    log.wait("second ends")
    assert second.finish(waiting).ok
    assert log.lines == ["first begins", "second begins", "second ends"]


def test_timeout_says_who_has_it(server: Server, log: Log) -> None:
    first, second = sharing(server, "first", "second")
    running = first.begin(log.cell("first", waits=True))
    log.wait("first begins")
    late = second.run(log.cell("second", head="%%gpu turn --timeout 1"))
    assert " ".join(late.traceback) == late.error
    assert late.error.startswith("The turn did not come within 1 s: first.ipynb (")
    log.end("first")
    assert first.finish(running).ok
    assert second.run(log.cell("second", head="%%gpu turn --timeout 1m")).ok
    for line in ("turn --timeout x", "turn --timeout 0", "turn -x", "turns", "attach 1", ""):
        bad = second.run(f"%%gpu {line}\n1")
        assert bad.status == "error" and " ".join(bad.traceback) == bad.error, line
    assert "%%gpu turn" in second.run("%gpu turn").error


def test_turn_within_a_turn_comes_at_once(server: Server, log: Log) -> None:
    first, second = sharing(server, "first", "second")
    child = "import genv_jupyter\nwith genv_jupyter.turn(timeout=20):\n    print('child')"
    begun = first.begin(
        log.cell("first", waits=True) + "\nimport genv_jupyter, subprocess, sys\ndef inner():\n"
        "    with genv_jupyter.turn():\n        get_ipython().run_cell_magic('gpu', 'turn', '1')\n"
        "inner()\n"
        f"print(subprocess.run([sys.executable, '-c', {child!r}], check=True, text=True, "
        "capture_output=True).stdout)"
    )
    log.wait("first begins")
    waiting, _ = begin_waiting(second, log.cell("second"))
    log.end("first")
    ran = first.finish(begun)
    assert ran.ok and "child" in ran.stdout, ran
    assert second.finish(waiting).ok, "given up once, at the end"
    assert log.lines[-2:] == ["second begins", "second ends"]


def test_nothing_to_wait_for(server: Server, log: Log) -> None:
    whole, none = server.kernel("whole"), server.kernel("none")
    assert whole.run("%gpu attach 1").ok
    ran = whole.run(log.cell("whole"))
    assert ran.ok and ran.text == "" and ran.stderr == ""
    ran = none.run("%%gpu turn\n1 + 1")
    assert ran.text == "2" and "there is no turn to wait for" in ran.stderr


def test_as_context_manager_in_a_program(server: Server, log: Log) -> None:
    first, second = sharing(server, "first", "second")
    running = first.begin(log.cell("first", waits=True))
    log.wait("first begins")
    program = "from genv_jupyter import turn\nwith turn('1m'):\n    print('mine')"
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "GENV_JUPYTER_ENVIRONMENT": second.id},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    assert "Waiting for the turn on GPU 0: first.ipynb" in started.stderr.readline()
    log.end("first")
    out, error = started.communicate(timeout=60)
    assert out == "mine\n" and error.startswith("The turn came after")
    assert first.finish(running).ok


def test_program_in_a_terminal_has_its_turn(server: Server, log: Log) -> None:
    first, second = sharing(server, "first", "second")
    running = first.begin(log.cell("first", waits=True))
    log.wait("first begins")
    write = f"import os; os.write(os.open({str(log.file)!r}, os.O_WRONLY | os.O_APPEND), b'%s\\n')"
    program = f"{write % 'program begins'}; input(); {write % 'program ends'}; raise SystemExit(7)"
    environ = {**os.environ, "GENV_JUPYTER_ENVIRONMENT": second.id}
    command = [sys.executable, "-m", "genv_jupyter.cli", "turn"]
    started = subprocess.Popen(
        [*command, "--", sys.executable, "-c", program],
        env=environ,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    assert "Waiting for the turn on GPU 0: first.ipynb" in started.stderr.readline()
    late = subprocess.run(
        [*command, "--timeout", "1", "--", "true"], env=environ, capture_output=True, text=True
    )
    assert late.returncode == 124 and "did not come within 1 s" in late.stderr
    for line, status, said in (
        (["--timeout", "1", "--", "no-such-program"], 127, "was not found"),  # before any waiting
        (["no-such-program"], 125, "jupyter gpu turn -- python train.py"),
    ):
        wrong = subprocess.run([*command, *line], env=environ, capture_output=True, text=True)
        assert wrong.returncode == status and said in wrong.stderr
    log.end("first")
    log.wait("program begins")
    assert first.finish(running).ok
    # It has become the program, and still has the turn: its connection, and its locks.
    waiting, said = begin_waiting(first, log.cell("again"))
    assert "second.ipynb" in said
    kill_broker()
    time.sleep(2.5)  # more than a new broker waits for those who come back
    assert log.lines[-1] == "program begins"
    assert started.communicate("\n", timeout=60) and started.returncode == 7
    assert first.finish(waiting).ok
    assert log.lines[-3:] == ["program ends", "again begins", "again ends"]
