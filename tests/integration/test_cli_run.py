"""`jupyter gpu run` and `shell`: devices before the program starts, and nothing in between."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.model import Environment
from tests.conftest import end
from tests.integration.terminals import GPU, Terminal, jupyter_gpu

HERE = """
import json, os
names = ("CUDA_VISIBLE_DEVICES", "GENV_JUPYTER_ENVIRONMENT", "GENV_JUPYTER_COMMAND")
print(json.dumps([os.environ[name] for name in names]))
"""
UNTOUCHED = "grep SigIgn /proc/$$/status; ls /proc/$$/fd; :"


def wait_until(look: Callable[[], object]) -> None:
    """Wait for something; the test's own timeout is the limit."""
    while not look():
        time.sleep(0.05)


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def named(name: str) -> Environment | None:
    return next((it for it in Client().environments() if it.name == name), None)


def holding(name: str) -> bool:
    found = named(name)
    return found is not None and bool(found.grants)


def gone(name: str) -> bool:
    return named(name) is None


def test_program_starts_with_its_devices_and_gives_them_back(broker_home: Path) -> None:
    ran = jupyter_gpu("run", "0.5", "--name", "train", "--", sys.executable, "-c", HERE)
    assert ran.returncode == 0, ran.stderr
    visible, environment, _ = json.loads(ran.stdout)
    assert visible.startswith("GPU-") and "," not in visible
    assert ran.stderr.splitlines() == [
        f"GPU 0: 12 GiB, 50 % of compute, for train (environment {environment[:8]}). SIMULATED"
    ]
    # Nobody has to wait for the broker to notice the end.
    again = jupyter_gpu("run", "2", "-q", "--", "sh", "-c", UNTOUCHED)
    assert (again.returncode, again.stderr) == (0, "")
    ignored, *files = again.stdout.splitlines()
    directly = subprocess.run(["sh", "-c", UNTOUCHED], capture_output=True, text=True, check=True)
    assert ignored == directly.stdout.splitlines()[0], "Python ignores SIGPIPE for itself"
    assert files == ["0", "1", "2"], "nothing of ours is left open"


def test_environment_is_the_programs_own(broker_home: Path) -> None:
    command = [*GPU, "run", "--gpus", "1", "--memory", "8G", "--", "sleep", "600"]
    with started(*command) as process:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        found = named("sleep")
        assert found is not None
        assert (found.kind, found.pid, found.applied) == ("command", process.pid, "live")
        assert [grant.memory for grant in found.grants] == [8 * 10**9]
        process.kill()
        assert process.wait() == -signal.SIGKILL
        wait_until(lambda: gone("sleep"))


def test_exit_status(broker_home: Path) -> None:
    jupyter_gpu("health")
    statuses: dict[str, int] = {
        "-- sh -c 'exit 7'": 7,
        "-- sh -c 'kill -TERM $$'": -signal.SIGTERM,
        "-- no-such-program": 127,
        "-- /etc/passwd": 126,
        "3 -- true": 125,
        "1.5 -- true": 125,
        "1 --gpus 1 -- true": 125,
        "1 true": 125,
        "1 --": 125,
        "--no-such -- true": 125,
        "--wait=soon -- true": 125,
    }
    for line, status in statuses.items():
        ran = jupyter_gpu("run", "-q", *shlex.split(line))
        assert ran.returncode == status, line
        assert ("Error: " in ran.stderr) == (status >= 125), line


def test_program_without_a_first_line_runs_as_in_a_shell(broker_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo ran $1")
    script.chmod(0o755)
    assert jupyter_gpu("run", "0.5", "--", str(script), "so").stdout == "ran so\n"
    script.write_bytes(b"\x7fELF is no program")
    assert jupyter_gpu("run", "0.5", "--", str(script)).returncode != 0
    assert jupyter_gpu("run", "2", "--", "true").returncode == 0, "given back at once"


def test_refusal_names_the_holder_and_starts_nothing(broker_home: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    ran = jupyter_gpu(
        "run", "2", "--name", "all", "--",
        "sh", "-c", f"{sys.executable} -m genv_jupyter.cli run 1 -- touch {made}; echo $?",
    )  # fmt: skip
    assert ran.stdout == "125\n"
    assert "all of" in ran.stderr and "holds all of it since" in ran.stderr
    assert not made.exists()


def test_no_broker_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENV_JUPYTER_HOME", "/proc/no-directory")
    ran = jupyter_gpu("run", "1", "--", "true")
    assert ran.returncode == 125 and "Error: " in ran.stderr
    assert jupyter_gpu("devices").returncode == 3
    assert jupyter_gpu("doctor").returncode == 3
    assert json.loads(jupyter_gpu("envs", "--json").stdout)["code"] == "unavailable"


def test_inner_command_keeps_to_the_pool_of_the_outer_one(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch job's devices are all there is, also for a command inside a command."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    inner = f"{sys.executable} -m genv_jupyter.cli run -q 0.5 -- {sys.executable} -c '{HERE}'; :"
    ran = jupyter_gpu("run", "-q", "0.5", "--", "sh", "-c", inner)
    second = next(it.uuid for it in Client().devices() if it.index == 1)
    assert json.loads(ran.stdout)[0] == second
    over = jupyter_gpu("run", "-q", "1", "--", "sh", "-c", inner.replace("0.5", "1"))
    assert "No GPU is free" in over.stderr, "the other one is not for this job"


# -- waiting ----------------------------------------------------------------------------------


@contextlib.contextmanager
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """Have both GPUs."""
    with started(*GPU, "run", "2", "--name", "holder", "--", "sleep", "600") as process:
        wait_until(lambda: holding("holder"))
        yield process


def test_waiting_says_who_holds_what_and_goes_on_when_there_is_room(broker_home: Path) -> None:
    with holder() as held, Terminal([*GPU, "run", "1", "--wait", "--", "echo", "ran"]) as waiter:
        said = waiter.expect("holder of")
        assert said.replace("\r\n", " ").startswith(
            "Waiting (Ctrl-C leaves the queue). First in the queue. No GPU is free"
        )
        wait_until(lambda: not gone("echo"))
        assert not holding("echo")
        held.kill()
        assert "for echo" in waiter.expect("ran\r\n")
        waiter.expect("$")
        waiter.child.wait()
        assert waiter.child.exitstatus == 0


def test_wait_may_end(broker_home: Path) -> None:
    with holder():
        over = jupyter_gpu("run", "--wait=1s", "1", "--", "true")
        assert over.returncode == 124
        assert "The wait of 1 s is over. No GPU is free for a whole device." in over.stderr
        assert over.stderr.count("Waiting") == 1
        assert jupyter_gpu("run", "--wait", "1s", "1", "--", "true").returncode == 124
        assert jupyter_gpu("run", "--wait", "3", "--", "true").returncode == 125, "never possible"


def test_ctrl_c_ends_the_wait_as_it_ends_a_program(broker_home: Path) -> None:
    with holder(), Terminal() as shell:
        shell.expect("ready> ")
        shell.type(f"{' '.join(GPU)} run 1 --wait -- true")
        shell.expect("Waiting")
        shell.child.sendintr()
        shell.expect("Nothing was started")
        shell.expect("ready> ")
        assert shell.run("echo status $?") == "status 130\n"
        wait_until(lambda: gone("true"))


def test_killed_waiter_leaves_nothing(broker_home: Path) -> None:
    with holder():
        command = [*GPU, "run", "1", "--wait", "--name", "w", "--", "true"]
        with started(*command) as waiter:
            wait_until(lambda: not gone("w"))
            waiter.kill()
        wait_until(lambda: gone("w"))


def test_wait_outlives_the_broker(broker_home: Path) -> None:
    with holder() as held, Terminal([*GPU, "run", "1", "--wait", "--", "echo", "ran"]) as waiter:
        waiter.expect("Waiting")
        end(Client().health().pid)
        held.kill()
        waiter.expect("ran\r\n")


# -- terminals --------------------------------------------------------------------------------

JOB = textwrap.dedent("""
    import os, signal, sys, time
    def got(number, frame):
        print("got", signal.Signals(number).name, os.get_terminal_size().columns, flush=True)
        if number == signal.SIGINT:
            sys.exit(3)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGWINCH, signal.SIGCONT):
        signal.signal(number, got)
    print("foreground", os.tcgetpgrp(0) == os.getpgrp(), flush=True)
    while True:
        time.sleep(600)
""")


def test_terminal_and_signals_are_the_programs(broker_home: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    with Terminal() as shell:
        shell.expect("ready> ")
        shell.type(f"{' '.join(GPU)} run -q 0.5 -- {sys.executable} {tmp_path / 'job.py'}")
        shell.expect("foreground True")
        found = named(f"{Path(sys.executable).name} job.py")
        assert found is not None and found.pid is not None
        shell.child.setwinsize(24, 100)
        shell.expect("got SIGWINCH 100")
        os.kill(found.pid, signal.SIGTERM)
        shell.expect("got SIGTERM")
        os.kill(found.pid, signal.SIGHUP)
        shell.expect("got SIGHUP")
        shell.child.sendcontrol("z")
        shell.expect("Stopped")
        shell.expect("ready> ")
        assert holding(str(found.name)), "a stopped program keeps its devices"
        assert "job.py" in shell.run("jobs")
        shell.type("fg")
        shell.expect("got SIGCONT")
        shell.child.sendintr()
        shell.expect("got SIGINT")
        shell.expect("ready> ")
        assert shell.run("echo status $?") == "status 3\n"


def test_shell_lives_in_an_environment(broker_home: Path) -> None:
    (broker_home / "rc").write_text("PS1='ready> '\n")
    command = [*GPU, "shell", "0.5", "--name", "mine"]
    rc = {"SHELL": "/bin/sh", "ENV": str(broker_home / "rc")}
    with Terminal(command, rc) as shell:
        said = shell.expect("ready> ").replace("\r\n", " ").replace("   ", " ")
        assert "for mine" in said and "until you leave this shell" in " ".join(said.split())
        found = named("mine")
        assert found is not None and (found.kind, found.pid) == ("shell", shell.pid)
        assert found.grants[0].device in shell.run("echo $CUDA_VISIBLE_DEVICES")
        assert "mine" in shell.run(f"{' '.join(GPU)} status")
        shell.type("exit")
        shell.child.wait()
    wait_until(lambda: gone("mine"))


def test_project_file_gives_the_defaults(broker_home: Path, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    there = {"cwd": tmp_path / "sub"}
    first = jupyter_gpu("run", "0.5", "-n", "llm", "--save", "--", "true", **there)
    file = tmp_path / "sub" / "genv.toml"
    assert first.stderr.startswith(f"Saved in {file}.")
    file.rename(tmp_path / "genv.toml")
    second = jupyter_gpu("run", "--", "true", **there)
    told, given = second.stderr.splitlines()
    assert told == f"{tmp_path / 'genv.toml'}: 0.5 of a GPU, name llm."
    assert given.startswith("GPU 0: 12 GiB, 50 % of compute, for llm")
    (tmp_path / "genv.toml").write_text("gpu = 1")
    wrong = jupyter_gpu("run", "--", "true", **there)
    assert wrong.returncode == 125 and "unknown key, 'gpu'" in wrong.stderr
