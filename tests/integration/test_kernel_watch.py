"""`%gpu watch` in real kernels: where the line stands, what it says, and that it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from genv_jupyter.kernel.watch import THREAD
from tests.fakedriver.fixtures import fake_driver
from tests.integration.kernels import TIMEOUT, Kernel, Server
from tests.integration.test_kernel_cache import CUDA

__all__ = ["fake_driver"]

THREADS = f"[t.name for t in __import__('threading').enumerate()].count({THREAD!r})"
WAIT = "while not stop.exists(): time.sleep(0.02)"


@pytest.fixture
def kernel(
    broker_home: Path, tmp_path: Path, fake_driver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kernel]:
    for name, value in fake_driver().environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    with Server(tmp_path) as server:
        kernel = server.kernel("llm")
        assert kernel.run("%gpu attach 0.5").ok
        assert kernel.run(f"import pathlib, time; here = pathlib.Path({str(tmp_path)!r})").ok
        assert kernel.run("stop = here / 'stop'").ok
        yield kernel


class Watched:
    """A cell that is running, and all that it has sent so far."""

    def __init__(self, kernel: Kernel, code: str) -> None:
        self.kernel = kernel
        self.sent = kernel.begin(code)
        self.messages: list[dict[str, Any]] = []

    def until(self, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read on until a message is as described; return it."""
        while True:
            message = self.kernel.client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") != self.sent:
                continue
            self.messages.append(message)
            if true(message):
                return message

    def shows(self, text: str) -> dict[str, Any]:
        return self.until(
            lambda message: text in message["content"].get("data", {}).get("text/plain", "")
        )

    def end(self) -> None:
        self.until(lambda message: message["content"].get("execution_state") == "idle")
        self.kernel.client.get_shell_msg(timeout=TIMEOUT)

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [it for it in self.messages if it["msg_type"].endswith("display_data")]


def test_a_long_cell_shows_what_it_uses_in_one_updating_output(
    kernel: Kernel, tmp_path: Path
) -> None:
    assert "Watching" in kernel.run("%gpu watch").text
    step = tmp_path / "step"
    cell = Watched(
        kernel,
        f"print('before')\nwhile not (here / 'step').exists(): time.sleep(0.02)\n{CUDA}\n"
        f"buffer = Buffer(3)\nprint('between')\n{WAIT}",
    )
    first = cell.shows("GPU 0: nothing of 11.8 GiB, device 0 % busy")
    assert first["msg_type"] == "display_data"
    step.touch()
    grown = cell.shows("GPU 0: 3.3 GiB of 11.8 GiB")
    assert grown["msg_type"] == "update_display_data"
    (tmp_path / "stop").touch()
    # The last word comes when the cell is over, perhaps after its idle message.
    last = cell.shows("at most 3.3 GiB in this cell")
    assert "3.3 GiB of 11.8 GiB" in last["content"]["data"]["text/html"]
    assert len({it["content"]["transient"]["display_id"] for it in cell.displays}) == 1
    assert sum(it["msg_type"] == "display_data" for it in cell.displays) == 1
    kinds = [it["msg_type"] for it in cell.messages if it["msg_type"] != "status"]
    assert kinds.index("stream") < kinds.index("display_data"), "what was printed stands above"
    printed = [it["content"]["text"] for it in cell.messages if it["msg_type"] == "stream"]
    assert "".join(printed).split() == ["before", "between"], "nothing in between"


def test_short_cells_show_nothing_and_off_leaves_nothing(kernel: Kernel) -> None:
    assert kernel.value(THREADS) == 0
    kernel.run(
        "hooks = {name: list(each) for name, each in get_ipython().events.callbacks.items()}"
    )
    for _ in range(2):
        assert kernel.run("%gpu watch").ok
    assert kernel.value(THREADS) == 1, "twice is as once"
    quick = Watched(kernel, "1 + 1")
    quick.end()
    assert quick.displays == []
    assert "No longer watching" in kernel.run("%gpu watch off").text
    assert kernel.value(THREADS) == 0
    assert kernel.value("get_ipython().events.callbacks == hooks") is True
    assert kernel.run("%gpu watch off").ok


def test_nothing_is_attached_and_a_lost_broker_are_said(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%gpu watch\n%gpu release")
    cell = Watched(kernel, WAIT)
    cell.shows("GPU: nothing is attached here.")
    (tmp_path / "stop").touch()
    cell.end()
    (tmp_path / "stop").unlink()
    maps = kernel.value("[line for line in open('/proc/self/maps') if 'libcuda' in line]")
    assert maps == [], "watching loads no driver"
    kernel.run("watcher = __import__('genv_jupyter.kernel.watch').kernel.watch._current")
    kernel.run(
        "def refuse(*_):\n"
        "    from genv_jupyter.errors import BrokerDown\n"
        "    raise BrokerDown('It is away.')\n"
        "watcher._client.environment = refuse"
    )
    cell = Watched(kernel, WAIT)
    cell.shows("GPU: It is away.")
    (tmp_path / "stop").touch()
    cell.end()
    assert kernel.value("6 * 7") == 42


def test_a_cell_within_a_cell_is_the_same_one(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%gpu watch")
    cell = Watched(kernel, f"get_ipython().run_cell('inner = 1')\n{WAIT}")
    cell.shows("GPU 0")
    (tmp_path / "stop").touch()
    cell.shows("in this cell")


def test_kernel_ends_with_the_watch_on(kernel: Kernel, capfd: pytest.CaptureFixture[str]) -> None:
    kernel.run("%gpu watch")
    capfd.readouterr()
    kernel.client.shutdown()
    kernel.client.get_control_msg(timeout=TIMEOUT)
    provisioner = kernel.manager.provisioner
    assert provisioner is not None
    process = provisioner.process
    assert process.wait(TIMEOUT) == 0
    assert capfd.readouterr().err == ""


def test_terminal_has_whole_lines_on_stderr(broker_home: Path) -> None:
    shell = pexpect.spawn(
        sys.executable,
        ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"],
        encoding="utf-8",
        timeout=TIMEOUT,
        dimensions=(40, 200),
    )
    try:
        shell.expect(r"In \[1\]: ")
        shell.sendline("%load_ext genv_jupyter")
        shell.expect(r"In \[2\]: ")
        shell.sendline(
            "import time; from genv_jupyter.kernel import watch; "
            "watch.Lines.after = watch.Lines.every = 0.1"
        )
        shell.expect(r"In \[3\]: ")
        shell.sendline("%gpu attach 0.5")
        shell.expect("Attached.*In \\[4\\]: ")
        shell.sendline("%gpu watch")
        shell.expect("Watching.*In \\[5\\]: ")
        shell.sendline("time.sleep(1)")
        shell.expect(r"\nGPU 0 \(SIMULATED\): nothing of 12 GiB, device 0 % busy\r\n")
        shell.expect(r"GPU 0 \(SIMULATED\): nothing of 12 GiB, at most nothing in this cell")
        shell.sendline("exit")
        shell.expect(pexpect.EOF)
    finally:
        shell.close(force=True)
