"""The rules over the fake driver: real kernels, real CUDA contexts, and a broker of its own.

This process plays the Jupyter server; ``test_rules_server`` has a real one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.service import Broker
from genv_jupyter.devices.nvml import NvmlSource
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.model import Principal, Request
from genv_jupyter.notices import Notice
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import driver, fake_driver
from tests.integration.kernels import Kernel, Server, next_want
from tests.integration.test_cli import jupyter_gpu

__all__ = ["driver", "fake_driver"]

HOLD = """
import os, signal, sys
from cuda.bindings import driver as cuda
for number in {ignored}: signal.signal(number, signal.SIG_IGN)
assert int(cuda.cuInit(0)[0]) == 0
_, device = cuda.cuDeviceGet(0)
_, context = cuda.cuDevicePrimaryCtxRetain(device)
cuda.cuCtxSetCurrent(context)
error, _ = cuda.cuMemAlloc({memory})
assert int(error) == 0, error
"""
CHILD = """
import subprocess, sys
code = {code!r} + "\\nprint(flush=True); signal.pause()"
environ = {{**os.environ, **{more}}}
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environ)
assert child.stdout.readline()
"""
GIB = 2**30
DEAF = "(2, 15)"

WriteRules = Callable[..., None]


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteRules:
    """Configure the broker that is about to be started."""
    directory = tmp_path / "config"
    directory.mkdir()
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(directory))

    def write(**settings: Any) -> None:
        quick = {"cap_slack": 0, "patience": 0, "pause": 0, **settings}
        text = json.dumps({"Rules": quick})
        (directory / "jupyter_genv_config.json").write_text(text)

    return write


@pytest.fixture
def server(tmp_path: Path, driver: FakeDriver, rules: WriteRules) -> Iterator[Callable[[], Server]]:
    """Play a server, once the rules are written."""
    made: list[Server] = []

    def start() -> Server:
        made.append(Server(tmp_path))
        made[-1].driver = driver
        return made[-1]

    yield start
    for each in made:
        each.__exit__()


def eventually(look: Callable[[], Any]) -> Any:
    """Wait until it is so; the time limit of every test bounds it."""
    while not (found := look()):
        time.sleep(0.05)
    return found


def told(server: Server, kind: str) -> Notice:
    def look() -> list[Notice]:
        return [it for it in server.client.notices() if it.kind == kind]

    return eventually(look)[0]  # type: ignore[no-any-return]


def child_of(kernel: Kernel, memory: int, ignored: str = "()", **more: str) -> int:
    """Have a kernel start a child that holds memory of the device it sees first."""
    code = HOLD.format(memory=memory, ignored=ignored)
    ran = kernel.run("import os" + CHILD.format(code=code, more=more))
    assert ran.ok, ran
    return int(kernel.value("child.pid"))


def ended(pid: int) -> bool:
    return processes.start_of(pid) is None


def rounds(server: Server, number: int) -> None:
    """Wait until the broker has judged that often: the device shows another use each time."""
    uuid = server.driver.uuids[1]
    for step in range(number):
        server.driver.update_device(uuid, temperature=40 + step)
        eventually(
            lambda step=step: any(
                it.uuid == uuid and it.temperature == 40 + step for it in server.client.devices()
            )
        )


def test_a_child_over_the_cap_is_ended_and_the_kernel_lives(
    rules: WriteRules, server: Callable[[], Server]
) -> None:
    rules(cap="act", cap_grace=0)
    playing = server()
    kernel = playing.kernel("llm")
    assert kernel.run("%gpu attach --memory 4G --no-mps").ok
    assert kernel.run(HOLD.format(memory=2**30, ignored="()")).ok
    small, large = child_of(kernel, GIB), child_of(kernel, 3 * GIB, DEAF)
    eventually(lambda: ended(large))
    assert not ended(small) and not ended(kernel.pid)
    notice = told(playing, "ended")
    assert notice.environment == kernel.id and f"Process {large}" in notice.message
    assert "is killed (cap)" in notice.message
    assert kernel.value("1 + 1") == 2
    assert f"Process {large}" in " ".join(kernel.run("%gpu").text.split())
    shown = jupyter_gpu("notices").stdout
    assert f"Process {large}" in shown and notice.id[:8] in shown
    assert notice.id[:8] not in jupyter_gpu("notices", "--dismiss", notice.id[:8]).stdout
    assert jupyter_gpu("notices", "--dismiss", "nothing").returncode == 2


def test_a_kernel_over_the_cap_is_interrupted_by_its_server_first(
    rules: WriteRules, server: Callable[[], Server]
) -> None:
    rules(cap="act", cap_grace=0, pause="1m")
    playing = server()
    kernel = playing.kernel("llm")
    assert kernel.run("%gpu attach --memory 4G --no-mps").ok
    cell = kernel.begin(HOLD.format(memory=6 * GIB, ignored="()") + "\nsignal.pause()")
    want = next_want(playing, "interrupt")
    assert want.kernel == kernel.id and want.launch == kernel.launch
    kernel.manager.interrupt_kernel()
    assert not kernel.finish(cell).ok and kernel.value("1 + 1") == 2


def test_by_default_it_is_told_and_the_doctor_says_what_is_done(
    rules: WriteRules, server: Callable[[], Server]
) -> None:
    rules(cap_grace=0)
    playing = server()
    kernel = playing.kernel("llm")
    assert kernel.run("%gpu attach --memory 4G --no-mps").ok
    child = child_of(kernel, 6 * GIB)
    notice = told(playing, "cap")
    assert (notice.level, notice.until, notice.environment) == ("warning", None, kernel.id)
    assert notice.message.endswith("of GPU 0 are used here, and 3.7 GiB granted.")
    rounds(playing, 3)
    assert not ended(child)
    doctor = " ".join(kernel.run("%gpu doctor").text.split())
    assert "Rules cap more than 0 B over what was granted: its owner is told" in doctor
    assert "idle nothing runs and nothing is used for 30 min: its owner is told" in doctor
    assert "Rules" in jupyter_gpu("doctor").stdout
    kept = kernel.run("%gpu keep")
    assert kept.ok and "Kept" in kept.text
    assert kernel.run("%gpu release").ok
    assert "nothing to keep" in playing.kernel("other").run("%gpu keep").error


def test_a_terminal_keeps_what_is_idle_and_the_countdown_begins_anew(
    rules: WriteRules, server: Callable[[], Server]
) -> None:
    rules(idle="act", idle_after=3, idle_grace="10m")
    playing = server()
    kernel = playing.kernel("llm")
    refused = jupyter_gpu("keep", "--kernel", kernel.id)
    assert refused.returncode == 1 and "nothing to keep" in refused.stderr
    assert kernel.run("%gpu attach --memory 4G --no-mps").ok
    idle = datetime.now(UTC) - timedelta(hours=1)
    kernel._report(kernel_state="idle", idle_since=idle)
    before = told(playing, "idle").until
    assert before is not None
    kept = jupyter_gpu("keep", "--kernel", kernel.id)
    assert kept.returncode == 0 and "Kept" in kept.stdout
    anew = before + timedelta(seconds=2)  # it must be idle for 3 s again
    eventually(lambda: (until := told(playing, "idle").until) is not None and until > anew)


def test_use_of_a_device_that_was_not_granted_is_ended(
    rules: WriteRules, server: Callable[[], Server]
) -> None:
    rules(foreign_device="act", foreign_device_grace=0)
    playing = server()
    first, second = playing.driver.uuids
    kernel = playing.kernel("llm")
    assert kernel.run(f"%gpu attach --memory 4G --no-mps --device {first}").ok
    inside = child_of(kernel, GIB)
    astray = child_of(kernel, GIB, DEAF, CUDA_VISIBLE_DEVICES=second)
    eventually(lambda: ended(astray))
    assert not ended(inside) and not ended(kernel.pid)
    assert "GPU 1 is used here by process" in told(playing, "ended").message


def test_a_bystander_that_the_driver_lists_as_a_child_is_not_touched(
    rules: WriteRules, server: Callable[[], Server]
) -> None:
    """In a container the driver may mean another process by that number: this one has no CUDA."""
    rules(cap="act", cap_grace=0, foreign_device="act", foreign_device_grace=0)
    playing = server()
    first, second = playing.driver.uuids
    kernel = playing.kernel("llm")
    assert kernel.run(f"%gpu attach --memory 4G --no-mps --device {first}").ok
    assert kernel.run("import subprocess; child = subprocess.Popen(['sleep', '600'])").ok
    pid = int(kernel.value("child.pid"))
    held = [{"pid": pid, "memory": 9 * GIB, "type": "compute"}]
    for uuid in (first, second):
        playing.driver.set_processes(uuid, held)
    told(playing, "cap")
    told(playing, "foreign_device")
    rounds(playing, 4)
    assert not ended(pid) and not ended(kernel.pid)
    assert [it for it in playing.client.notices() if it.kind == "ended"] == []
    assert kernel.run("child.kill(); child.wait()").ok


def test_a_lease_that_is_over_ends_a_command_that_no_server_started(
    rules: WriteRules, server: Callable[[], Server]
) -> None:
    rules(lease="act", lease_grace=0)
    playing = server()
    code = HOLD.format(memory=GIB, ignored=DEAF) + "\nprint(flush=True); signal.pause()"
    start = [sys.executable, "-m", "genv_jupyter.cli", "run", "--memory", "4G", "--no-mps", "--"]
    with subprocess.Popen([*start, sys.executable, "-c", code], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None and command.stdout.readline()
        (found,) = [it for it in playing.client.environments() if it.kind == "command"]
        wanted = Request(memory="4G", mps="off", duration=1)
        assert playing.client.attach(found.id, wanted).expires is not None
        assert command.wait() == -signal.SIGKILL
    assert "lease" in told(playing, "ended").message


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process needs root to make one")
def test_who_is_not_this_user_alone_is_not_touched(
    rules: WriteRules, server: Callable[[], Server], tmp_path: Path
) -> None:
    """A child of the kernel that has become somebody else: its uid differs from the owner's."""
    rules(cap="act", cap_grace=0)
    playing = server()
    kernel = playing.kernel("llm")
    assert kernel.run("%gpu attach --memory 4G --no-mps").ok
    become = "import os\nos.setresuid(54321, 0, 0)\n"  # real uid; it may still write its state
    code = become + HOLD.format(memory=6 * GIB, ignored="()")
    ran = kernel.run("import os" + CHILD.format(code=code, more={}))
    assert ran.ok, ran
    pid = int(kernel.value("child.pid"))
    told(playing, "cap")
    rounds(playing, 4)
    assert not ended(pid)
    assert kernel.run("child.kill(); child.wait()").ok


BECOME = """
import ctypes
if {uid} != os.getuid():
    os.setgid({uid})
    os.setuid({uid})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # it can be looked at as anybody's own process
print(flush=True)
signal.pause()
"""


def test_an_outsider_is_ended_and_root_and_whoever_has_no_cuda_are_not(
    driver: FakeDriver, tmp_path: Path
) -> None:
    """A broker in this process, which acts for an ordinary user also where root runs the tests."""
    user = os.getuid() or 54321
    config = Config({"Rules": {"outside": "act", "outside_grace": 0, "patience": 0, "pause": 0}})
    source = NvmlSource()
    broker = Broker(LiveLedger(tmp_path / "ledger"), source, config=BrokerConfig(config))
    broker.rules.me = broker.rules.scene.me = user
    hold = HOLD.format(memory=GIB, ignored=DEAF)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", hold + BECOME.format(uid=uid)], stdout=subprocess.PIPE
        )
        for uid in (user, os.getuid())
    ]
    without = subprocess.Popen(["sleep", "600"], user=user if os.getuid() == 0 else None)
    outsider, system = started
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline()
        listed = [{"pid": without.pid, "memory": 9 * GIB, "type": "compute"}]
        driver.set_processes(driver.uuids[1], listed)
        while outsider.poll() is None:
            broker.tick()
            broker.tick_rules()
        assert outsider.returncode == -signal.SIGKILL
        for _ in range(4):
            broker.tick()
            broker.tick_rules()
        assert without.poll() is None
        assert os.getuid() != 0 or system.poll() is None
        told = broker.notices(Principal(realm="local", id=str(user), name=""))
        assert not any(str(without.pid) in it.message for it in told)
    finally:
        for process in (*started, without):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        broker.close()
