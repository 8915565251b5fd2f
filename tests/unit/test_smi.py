"""The view of nvidia-smi: what it counts, whom it shows, and the program that asks for it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.broker import process, rights, smi
from genv_jupyter.details import Details
from genv_jupyter.devices.source import Inventory, ProcessReading
from genv_jupyter.errors import NotYours, UnknownEnvironment
from genv_jupyter.isolation.live import PROGRAMS, put_first
from genv_jupyter.isolation.smi import install, program, view
from genv_jupyter.isolation.smi.report import MIB, App, Card, Report, SmiAnswer, SmiCall
from genv_jupyter.model import Principal, Request
from genv_jupyter.server import variables
from tests.unit.brokers import GIB, HALF, WHOLE, Bench, Kernel

# Lines of NVIDIA's nvidia-smi 535, as people have published them.
PUBLISHED = (
    "|    0   N/A  N/A      2146      G   /usr/lib/xorg/Xorg                            4MiB |",
    "|    0   N/A  N/A    314084      C   /usr/bin/python3                           6260MiB |",
    "|    0   N/A  N/A     23113      G   ...libexec/gnome-remote-desktop-daemon        3MiB |",
)
NAMES = ("/usr/lib/xorg/Xorg", "/usr/bin/python3", "/usr/libexec/gnome-remote-desktop-daemon")


def report(*cards: Card) -> Report:
    return Report(cards=cards, driver="535.1", cuda=12020, now=datetime(2026, 1, 2, 3, 4, 5))


def ask(kernel: Kernel, *args: str, rounds: int = 0) -> SmiAnswer:
    bench = kernel.bench
    return bench.broker.nvidia_smi(bench.me, kernel.id, SmiCall(args=args, rounds=rounds))


def csv(kernel: Kernel, properties: str) -> list[str]:
    return ask(kernel, f"--query-gpu={properties}", "--format=csv,noheader").stdout.splitlines()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "ledger.sqlite")
    yield bench
    bench.close()


# -- what is counted -------------------------------------------------------------------------------


def test_total_is_the_cap_and_used_is_ones_own(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel()
    kernel.attach(HALF)
    other.attach(HALF)
    kernel.use(0, 3 * GIB)
    other.use(0, 5 * GIB)
    desk.source.devices[0].external_memory = GIB
    cap = kernel.now.grants[0].memory // MIB
    asked = "memory.total,memory.used,memory.free,memory.reserved,count"
    assert csv(kernel, asked) == [f"{cap} MiB, 3072 MiB, {cap - 3072} MiB, 0 MiB, 1"]
    apps = ask(kernel, "--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert apps.stdout == f"{kernel.process.pid}, 3072 MiB\n"
    assert str(other.process.pid) not in ask(kernel, "-q", "-x").stdout


def test_more_than_the_cap_is_shown_and_nothing_is_free(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(memory="2Gi"))
    kernel.use(0, 3 * GIB)
    assert csv(kernel, "memory.total,memory.used,memory.free") == ["2048 MiB, 3072 MiB, 0 MiB"]


def test_what_is_not_known_is_not_zero(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    listed = desk.source.devices[0].processes
    assert listed is not None
    listed.append(ProcessReading(kernel.process.pid, None, "mps"))
    assert csv(kernel, "memory.used,memory.free") == ["[N/A], [N/A]"]
    table = ask(kernel).stdout
    assert "      N/A /" in table
    assert " M+C   sleep " in table
    desk.source.devices[0].processes = None
    smi_again = desk.broker.particulars
    smi_again.at = float("-inf")
    assert csv(kernel, "memory.used") == ["[N/A]"]


def test_devices_are_numbered_as_the_environment_sees_them(desk: Bench) -> None:
    first, kernel = desk.kernel(), desk.kernel()
    first.attach(WHOLE)
    kernel.attach(WHOLE)
    assert csv(kernel, "index,uuid") == [f"0, {desk.device(1)}"]
    assert ask(kernel, "-i", "1").exit_code == 6
    assert ask(kernel, "-i", desk.device(0)).exit_code == 6
    assert ask(kernel, "-L", "-i", "0").exit_code == 2


def test_without_a_grant_there_are_no_devices_and_a_way_to_get_one(desk: Bench) -> None:
    answer = ask(desk.kernel())
    assert (answer.stdout, answer.exit_code) == ("No devices were found\n", 6)
    assert "%gpu attach 0.5" in answer.stderr
    assert "jupyter gpu run" in answer.stderr


def test_a_lost_device_tells_nothing_but_its_cap(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    desk.source.devices[0].health = "lost"
    desk.tick()
    assert csv(kernel, "utilization.gpu,memory.used,compute_mode") == ["[N/A], [N/A], [N/A]"]


def test_strangers_learn_nothing(desk: Bench) -> None:
    kernel = desk.kernel()
    stranger = Principal(realm="local", id="65534", name="nobody")
    with pytest.raises(NotYours):
        desk.broker.nvidia_smi(stranger, kernel.id, SmiCall(args=()))
    with pytest.raises(UnknownEnvironment):
        desk.broker.nvidia_smi(desk.me, "none", SmiCall(args=()))


# -- what it costs ---------------------------------------------------------------------------------


def test_many_who_ask_share_a_reading(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    readings: list[bool] = []
    read = desk.source.read

    def counted(*, details: bool = False) -> Inventory:
        readings.append(details)
        return read(details=details)

    monkeypatch.setattr(desk.source, "read", counted)
    monkeypatch.setattr(smi, "FRESH", 3600.0)
    for _ in range(20):
        assert ask(kernel).exit_code == 0
    assert readings == [True]
    desk.tick()
    assert readings == [True, False], "the sampler does not read particulars"
    ask(kernel, "-h")
    ask(kernel, "--help-query-gpu")
    ask(kernel, "--query-gpu=nonsense", "--format=csv")
    assert len(readings) == 2


def test_nobody_waits_for_a_driver_that_hangs(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    inventory = desk.source.read()
    desk.broker.core.absorb(inventory, 1e9, 1e9 + 60)
    monkeypatch.setattr(desk.source, "read", lambda **_: pytest.fail("it was asked"))
    assert ask(kernel, "-L").stdout.startswith("GPU 0: ")


def test_particulars_are_no_news_for_sidebars(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    device = desk.source.devices[0]
    plain = type(device).reading

    def told(self: object) -> object:
        import msgspec

        return msgspec.structs.replace(plain(device), details=Details(fan=33))

    desk.broker.changes(desk.me)
    monkeypatch.setattr(device, "reading", lambda: told(device), raising=False)
    assert csv(kernel, "fan.speed") == ["33 %"]
    assert desk.broker.changes(desk.me) is None


# -- how it is written -----------------------------------------------------------------------------


def test_lines_of_processes_are_as_published() -> None:
    pids, memory = (2146, 314084, 23113), (4, 6260, 3)
    kinds = ("graphics", "compute", "graphics")
    for line, pid, name, size, kind in zip(PUBLISHED, pids, NAMES, memory, kinds, strict=True):
        app = App(pid=pid, name=name, memory=size * MIB, kind=kind)
        table = view.render((), lambda app=app: report(Card(index=0, uuid="GPU-1", apps=(app,))))
        assert line in table.stdout.splitlines()


def test_names_cannot_break_the_xml() -> None:
    app = App(pid=1, name="</process_name><pid>2</pid>&", memory=None)
    card = Card(index=0, uuid='GPU-"1', name="<b>", apps=(app,))
    text = view.render(("-q", "-x"), lambda: report(card)).stdout
    assert "&lt;/process_name&gt;&lt;pid&gt;2&lt;/pid&gt;&amp;" in text
    assert text.count("<pid>") == 1


def test_what_is_not_read_is_named_once(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    question = ("--query-gpu=fabric.state,clocks_throttle_reasons.active", "--format=csv", "-l")
    answer = ask(kernel, *question)
    assert "clocks_event_reasons.active, fabric.state" in answer.stderr
    assert "GENV_JUPYTER_BYPASS=1" in answer.stderr
    assert answer.repeat == 5000
    assert ask(kernel, *question, rounds=1).stderr == ""


# -- the program -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["py thon", "p" * 130, "it's", "/".join(["p" * 200] * 4)])
def test_any_path_of_an_interpreter_can_be_run(where: str, tmp_path: Path) -> None:
    python = tmp_path / where / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} "$@"\n')
    python.chmod(0o755)
    assert install.install(tmp_path, "\0nobody", str(python)) == str(tmp_path)
    environ = {"GENV_JUPYTER_ENVIRONMENT": "x", "PATH": f"{tmp_path}:/nonexistent"}
    command = [tmp_path / "nvidia-smi", "a b"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 127
    assert "the GPU broker is not reachable" in done.stderr


def _bypassed(tmp_path: Path, *, out: str = "-") -> subprocess.CompletedProcess[str]:
    """Run the program with ``others`` behind it in PATH, past the broker."""
    others, ours = tmp_path / "others", tmp_path / "ours"
    ours.mkdir()
    install.install(ours, "\0nobody")
    environ = {
        "PATH": f"{ours}:{others}:/nonexistent",
        "GENV_JUPYTER_BYPASS": "1",
        "GENV_JUPYTER_ENVIRONMENT": "x",
    }
    command = f"exec {ours}/nvidia-smi {'' if out == '-' else out}"
    return subprocess.run(
        ["/bin/sh", "-c", command], env=environ, capture_output=True, text=True, timeout=30
    )


def _other(tmp_path: Path, text: str) -> Path:
    program = tmp_path / "others" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(text)
    program.chmod(0o755)
    return program


def test_a_wrapper_of_nvidias_own_is_called_once(tmp_path: Path) -> None:
    called = tmp_path / "called"
    _other(
        tmp_path, f'#!/bin/sh\necho >> {called}\nPATH="${{PATH#{tmp_path}/others:}}"\nnvidia-smi'
    )
    assert _bypassed(tmp_path).returncode == 127, "there is none behind the wrapper"
    assert called.read_text() == "\n"


def test_what_cannot_be_run_is_passed_over(tmp_path: Path) -> None:
    program = _other(tmp_path, "no program")
    done = _bypassed(tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (127, False)
    program.unlink()
    os.mkfifo(program, 0o755)
    shutil.rmtree(tmp_path / "ours")
    done = _bypassed(tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (127, False)


@pytest.mark.parametrize("out", [">/dev/full", ">&-", "2>/dev/full", "2>&-"])
def test_where_nothing_can_be_written_it_ends_in_a_line(tmp_path: Path, out: str) -> None:
    done = _bypassed(tmp_path, out=out)
    assert done.returncode in (1, 127)
    assert "Traceback" not in done.stderr
    answer = {"file": None, "stdout": "x"}
    code = f"from genv_jupyter.isolation.smi import program; program.tell({answer!r}, 0)"
    shell = ["sh", "-c", f'exec "$0" -c "$1" {out}', sys.executable, code]
    told = subprocess.run(shell, capture_output=True, text=True, timeout=30)
    assert told.returncode == (0 if out.startswith("2") else 1)
    assert told.stderr.count("\n") == (0 if out.startswith("2") else 1)


def test_a_directory_that_path_cannot_name_is_not_put_there(tmp_path: Path) -> None:
    notices: list[str] = []
    directory = tmp_path / "a:b"
    directory.mkdir(mode=0o700)
    assert process._programs(directory, notices) is None
    assert "nvidia-smi shows whole devices" in notices[0] and "colon" in notices[0]


def test_no_directory_for_programs_is_said_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    monkeypatch.setattr(install.os, "access", lambda *_: False)  # as on a noexec file system
    assert process._programs(tmp_path, notices) is None
    assert "nvidia-smi shows whole devices" in notices[0]
    (tmp_path / "bin").chmod(0o777)
    assert process._programs(tmp_path, notices) is None
    assert "Others may write" in notices[1]


def test_where_root_has_laid_it_is_believed_and_what_is_not_root_s_is_not_put_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock, notices = tmp_path / "run" / "broker.sock", list[str]()
    sock.parent.mkdir()
    assert rights.programs(sock, tmp_path, notices, "/laid") == "/laid"
    monkeypatch.setattr(rights.os, "getuid", lambda: 999)
    for laid, why in (("", "root has found no place"), (None, "users would not believe it")):
        assert rights.programs(sock, tmp_path, notices, laid) is None
        assert "nvidia-smi shows whole devices" in notices[-1] and why in notices[-1]
    assert not list(tmp_path.glob("**/bin"))


def test_a_planted_file_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    directory = tmp_path / "bin"
    directory.mkdir(mode=0o700)
    for name in ("nvidia-smi", f".nvidia-smi.{os.getpid()}", f"{install.MODULE}.py"):
        (directory / name).symlink_to(victim)
    install.install(directory, "\0nobody")
    assert victim.read_text() == "mine"
    assert not (directory / "nvidia-smi").is_symlink()


def test_another_users_broker_is_not_believed(tmp_path: Path) -> None:
    """Without another user at hand: the program is told that it is somebody else."""
    name = f"\0genv-jupyter-test-{os.getpid()}"
    install.install(tmp_path, name)
    module = tmp_path / f"{install.MODULE}.py"
    module.write_text(module.read_text().replace("posix.getuid()", "(posix.getuid() + 1)"))
    with socket.socket(socket.AF_UNIX) as broker:
        broker.bind(name)
        broker.listen()
        environ = {"GENV_JUPYTER_ENVIRONMENT": "x", "PATH": "/nonexistent"}
        done = subprocess.run(
            [tmp_path / "nvidia-smi"], env=environ, capture_output=True, text=True, timeout=30
        )
    assert f"its name is taken by a process of uid {os.getuid()}" in done.stderr
    assert rendezvous.address() != name


def _checked(*arguments: str, file: str | None = None, passed: Sequence[str] | None = None) -> bool:
    answer = {"file": file, "pass_through": None if passed is None else list(passed)}
    try:
        program.check(answer, list(arguments))
    except ValueError:
        return False
    return True


def test_a_broker_names_no_file_that_its_caller_has_not_named() -> None:
    assert _checked("-q", "-f", "out", file="out")
    assert _checked("--filename=a=b", "-q", file="a=b")
    assert _checked("-f", "-f", file="-f")
    assert _checked("-q")
    for arguments in (["-q"], ["-q", "-f", "out"], ["-i", "-f", ".bashrc"], ["--format=.bashrc"]):
        assert not _checked(*arguments, file=".bashrc")


def test_a_broker_passes_on_what_its_caller_has_asked_and_adds_devices_alone() -> None:
    asked = ["dmon", "-i", "0", "-f", "out", "--id=1", "-o", "T"]
    kept = ["dmon", "-f", "out", "-o", "T"]
    assert _checked(*asked, passed=kept)
    assert _checked(*asked, passed=[*kept, "-i", "GPU-1,MIG-GPU-2/1/0"])
    for wrong in (
        [*kept, "-f", "other"],
        [*kept, "-i", "GPU-1", "-f=x"],
        [*kept, "-i", "-f=x"],
        ["dmon", "-f", "T"],
        ["-pm", "1"],
        [],
    ):
        assert not _checked(*asked, passed=wrong), wrong


def test_what_nobody_asked_for_is_not_done(tmp_path: Path) -> None:
    """A broker that was taken over has its answer written nowhere: NVIDIA's own runs."""
    path, victim = tmp_path / "socket", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "bin").mkdir(mode=0o700)
    install.install(tmp_path / "bin", str(path))
    body = {"stdout": "evil", "stderr": "", "exit_code": 0, "file": str(victim), "repeat": None}
    text = json.dumps({**body, "pass_through": None}).encode()
    with socket.socket(socket.AF_UNIX) as broker:
        broker.bind(str(path))
        broker.listen()
        process = subprocess.Popen(
            [tmp_path / "bin" / "nvidia-smi", "-q"],
            env={"GENV_JUPYTER_ENVIRONMENT": "x", "PATH": "/nonexistent"},
            stderr=subprocess.PIPE,
            text=True,
        )
        broker.settimeout(30)
        called, _ = broker.accept()
        with called:
            called.recv(65536)
            called.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        said = process.communicate(timeout=30)[1]
    assert victim.read_text() == "mine"
    assert "names a file that nobody has asked for" in said and process.returncode == 127


# -- PATH ------------------------------------------------------------------------------------------


def test_path_has_our_directory_once_and_gives_it_back() -> None:
    environ = {"PATH": "/usr/bin:/bin"}
    for programs in ("/ours", "/ours"):
        put_first(environ, programs)
        environ[PROGRAMS] = programs
    assert environ["PATH"] == "/ours:/usr/bin:/bin"
    put_first(environ, "/newer")
    environ[PROGRAMS] = "/newer"
    assert environ["PATH"] == "/newer:/usr/bin:/bin"
    put_first(environ, None)
    assert environ["PATH"] == "/usr/bin:/bin"


def test_kernels_do_not_inherit_the_servers_program() -> None:
    env = {"PATH": "/ours:/usr/bin", PROGRAMS: "/ours"}
    variables.put(env, variables.unmanaged("k", "hide", "broken"), env.copy())
    assert (env["PATH"], env.get(PROGRAMS)) == ("/usr/bin", None)
    hidden = variables.unattached("k", "hide", "off", "", "/ours")
    variables.put(env, hidden, {})
    assert (env["PATH"], env[PROGRAMS]) == ("/usr/bin", "/ours"), "the stub in the kernel does it"
    assert PROGRAMS not in variables.unattached("k", "all", "off", "", "/ours")
