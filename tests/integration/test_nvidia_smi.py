"""``nvidia-smi`` inside environments: in real kernels over a fake driver, and as a program."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api import rendezvous
from genv_jupyter.api.client import Client
from genv_jupyter.isolation.live import PROGRAMS, put_first
from genv_jupyter.model import Environment, NewEnvironment, Request
from tests.conftest import end_broker
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.fixtures import fake_driver
from tests.fakedriver.scenario import MIB, instance_uuid, mig_scenario, server_device
from tests.integration.kernels import STARTUP
from tests.integration.servers import IPYKERNEL, Server, Talk, attach, eventually, started_with

__all__ = ["fake_driver"]

HOLD = """
from cuda.bindings import driver as cuda
assert cuda.cuInit(0)[0] == 0
_, device = cuda.cuDeviceGet(0)
_, context = cuda.cuDevicePrimaryCtxRetain(device)
"""
STAND_IN = f"#!{sys.executable}\nimport os, sys\nprint('REAL', *sys.argv[1:])\nsys.exit(42)\n"
CAP = 12032
"""MiB of half a device: 24 GiB, less the driver's 512 MiB."""


@pytest.fixture
def driver(broker_home: Path, fake_driver: Any, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Two devices that tell everything; comes before ``server``."""
    made: FakeDriver = fake_driver(
        {"devices": [server_device(0), server_device(1)], "context_bytes": 300 * MIB}
    )
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    return made


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody else's nvidia-smi, in PATH behind ours."""
    directory = tmp_path / "somewhere else"
    directory.mkdir()
    program = directory / "nvidia-smi"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


# -- in kernels ------------------------------------------------------------------------------------


async def bang(talk: Talk, command: str) -> str:
    """Return what a cell with ``!command`` shows."""
    message = talk.client.execute(f"!{command}")
    shown = ""
    while True:
        found = await talk.client.get_iopub_msg(timeout=30)
        if found["parent_header"].get("msg_id") != message:
            continue
        if found["msg_type"] == "stream":
            shown += found["content"]["text"]
        elif found["content"].get("execution_state") == "idle":
            return shown.replace("\r\n", "\n")


def rows(text: str) -> list[str]:
    """Return the lines of processes in the table."""
    below = text.split("Process name", 1)[1].splitlines()
    return [line for line in below if "MiB |" in line]


async def test_two_kernels_on_one_device_see_each_its_half(
    driver: FakeDriver, server: Server
) -> None:
    mine, other = await server.start_kernel(), await server.start_kernel()
    for kernel in (mine, other):
        await attach(server, kernel, {"fraction": 0.5})
    pids = {}
    for kernel in (mine, other):
        async with server.talk(kernel) as talk:
            assert (await talk.run(HOLD))["status"] == "ok"
            pids[kernel] = await talk.evaluate("__import__('os').getpid()")
    async with server.talk(mine) as talk:
        table = await bang(talk, "nvidia-smi")
        child = await bang(talk, "sh -c 'nvidia-smi -L; echo rc=$?'")
        csv = await bang(talk, "nvidia-smi --query-gpu=memory.total,memory.used --format=csv")
        apps = await bang(talk, "nvidia-smi --query-compute-apps=pid --format=csv,noheader")
    assert f" 300MiB / {CAP}MiB " in table
    (row,) = rows(table)
    assert f" {pids[mine]} " in row
    assert pids[other] not in table
    assert driver.uuids[1] not in child
    assert child.endswith("rc=0\n")
    assert csv == f"memory.total [MiB], memory.used [MiB]\n{CAP} MiB, 300 MiB\n"
    assert apps == f"{pids[mine]}\n"


async def test_a_release_leaves_nothing_and_says_how_to_attach(
    driver: FakeDriver, server: Server
) -> None:
    kernel = await server.start_kernel()
    await attach(server, kernel, {"gpus": 1})
    async with server.talk(kernel) as talk:
        before = await talk.evaluate("__import__('os').environ['PATH']")
        assert "UUID: GPU-" in await bang(talk, "nvidia-smi -L")
        assert (await server.gpu("DELETE", f"environments/{kernel}")).status == 200
        shown = await bang(talk, "nvidia-smi; echo rc=$?")
        path = await talk.evaluate("__import__('os').environ['PATH']")
    assert "No devices were found\n" in shown
    assert "%gpu attach 0.5" in shown
    assert shown.endswith("rc=6\n")
    assert path == before, "ours stands there once, however often something is attached"


async def test_a_kernel_that_sees_all_devices_has_nvidias_own(
    driver: FakeDriver, server: Server, add_kernelspec: Any, real: Path
) -> None:
    spec = add_kernelspec("open", list(IPYKERNEL), config={"unattached": "all"})
    kernel = await server.start_kernel(spec)
    async with server.talk(kernel) as talk:
        assert "REAL" in await bang(talk, "nvidia-smi")
        await attach(server, kernel, {"gpus": 1})
        assert "UUID: GPU-" in await bang(talk, "nvidia-smi -L")
        assert (await server.gpu("DELETE", f"environments/{kernel}")).status == 200

        async def gone() -> bool:
            return PROGRAMS not in await talk.evaluate("dict(__import__('os').environ)")

        await eventually(gone, "the release has reached the kernel")
        assert "REAL" in await bang(talk, "nvidia-smi")


async def test_a_hidden_kernel_sees_nothing_from_its_start(
    driver: FakeDriver, server: Server, add_kernelspec: Any, real: Path, tmp_path: Path
) -> None:
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(STARTUP, startup)
    spec = add_kernelspec("hidden", list(IPYKERNEL), env={"IPYTHONDIR": str(tmp_path / "ipython")})
    kernel = await server.start_kernel(spec)
    async with server.talk(kernel) as talk:
        assert "No devices were found" in await bang(talk, "nvidia-smi")
        assert "REAL" in await bang(talk, "GENV_JUPYTER_BYPASS=1 nvidia-smi")


async def test_a_kernel_started_with_a_grant_has_it_in_path(
    driver: FakeDriver, server: Server, add_kernelspec: Any
) -> None:
    spec = add_kernelspec("half", list(IPYKERNEL), config={"fraction": 0.5})
    kernel = await server.start_kernel(spec)
    environ = await started_with(server, kernel)
    assert environ["PATH"].split(":")[0] == environ[PROGRAMS]
    async with server.talk(kernel) as talk:
        assert f"{CAP} MiB" in await bang(talk, "nvidia-smi -q -d MEMORY")


# -- as a program ----------------------------------------------------------------------------------


class Inside:
    """The environment of this very process, and programs started in it."""

    def __init__(self) -> None:
        self.client = Client()
        made = self.client.create(NewEnvironment(kind="command", pid=os.getpid(), name="test"))
        self.id = made.id

    def attach(self, **request: Any) -> Environment:
        return self.client.attach(self.id, Request(**request))

    def environ(self, **more: str) -> dict[str, str]:
        found = self.client.environment(self.id).environ or {}
        environ = dict(os.environ)
        put_first(environ, found.get(PROGRAMS))
        environ |= {name: value for name, value in found.items() if value is not None}
        return environ | more

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nvidia-smi", *arguments],
            env=self.environ(**more),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def program(self) -> Path:
        return Path(self.environ()[PROGRAMS], "nvidia-smi")


@pytest.fixture
def inside(driver: FakeDriver) -> Iterator[Inside]:
    made = Inside()
    yield made
    with contextlib.suppress(Exception):  # a test may have ended the broker
        made.client.detach(made.id)
    made.client.close()


def test_what_is_not_translated_goes_to_nvidias_own_for_our_devices(
    inside: Inside, real: Path
) -> None:
    device = inside.attach(gpus=1).grants[0].device
    done = inside.run("-pm", "1")
    assert done.stdout == f"REAL -pm 1 -i {device}\n"
    assert done.returncode == 42
    assert done.stderr.startswith("genv-jupyter: -pm is answered by NVIDIA's own")
    assert inside.run("pmon", "-c", "1", "-i", "0").stdout == f"REAL pmon -c 1 -i {device}\n"
    assert inside.run("-pm", "1", "-i", "1").returncode == 6, "the second is not ours"
    topo = inside.run("topo", "-m")
    assert topo.stdout == "REAL topo -m\n"
    assert "whole host" in topo.stderr


def test_nothing_is_passed_on_where_nothing_is_attached(inside: Inside, real: Path) -> None:
    inside.attach(gpus=1)
    environ = inside.environ()
    inside.client.detach(inside.id, cuda="not_initialized")
    done = subprocess.run(["nvidia-smi", "-r"], env=environ, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("No devices were found\n", 6)


def test_without_nvidias_own_a_strange_option_is_refused_as_there(inside: Inside) -> None:
    inside.attach(gpus=1)
    done = inside.run("--strange\x1b[31m")
    assert done.stdout == (
        "ERROR: Option --strange?[31m is not recognized. Please run 'nvidia-smi -h'.\n\n"
    )
    assert done.returncode == 255
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("-i", "\x00"[:0] + "\udcff\n\x1b]0;x\x07"),
        ("--query-gpu=" + "memory.used," * 2000, "--format=csv"),
        ("--query-gpu=" + "x" * 100_000, "--format=csv"),
        ("-q",) * 5000,
        ("-d", '"],"rounds":1e9,"x":["'),
        ("-l", "9" * 400, "-x"),
        ("--query-gpu=\u2028\u202e", "--format=csv"),
    ],
)
def test_hostile_arguments_are_answered_in_a_line(
    inside: Inside, arguments: tuple[str, ...]
) -> None:
    inside.attach(gpus=1)
    done = inside.run(*arguments)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode in (0, 2, 6, 127, 255)
    assert "\x1b" not in done.stdout + done.stderr


def test_the_way_around_is_nvidias_own(inside: Inside, real: Path) -> None:
    inside.attach(gpus=1)
    assert inside.run("-L", GENV_JUPYTER_BYPASS="1").stdout == "REAL -L\n"
    outside = inside.environ()
    del outside["GENV_JUPYTER_ENVIRONMENT"]
    done = subprocess.run(["nvidia-smi"], env=outside, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("REAL\n", "")


def test_an_environment_that_has_ended_leaves_nvidias_own(inside: Inside, real: Path) -> None:
    inside.attach(gpus=1)
    gone = "00000000-0000-4000-8000-000000000000"
    done = inside.run("-q", GENV_JUPYTER_ENVIRONMENT=gone)
    assert done.stdout == "REAL -q\n"
    assert "There is no GPU environment" in done.stderr


def test_without_a_broker_nvidias_own_shows_what_is_visible(inside: Inside, real: Path) -> None:
    device = inside.attach(gpus=1).grants[0].device
    environ = inside.environ()
    inside.client.close()
    end_broker(rendezvous.address())
    done = subprocess.run(["nvidia-smi", "-q"], env=environ, capture_output=True, text=True)
    assert done.stdout == f"REAL -q -i {device}\n"
    assert "not reachable" in done.stderr


def test_two_programs_of_ours_do_not_call_each_other(inside: Inside, tmp_path: Path) -> None:
    inside.attach(gpus=1)
    shutil.copy(inside.program, tmp_path / "nvidia-smi")
    environ = inside.environ(GENV_JUPYTER_BYPASS="1")
    environ["PATH"] = f"{environ[PROGRAMS]}:{tmp_path}:/nonexistent"
    done = subprocess.run(["nvidia-smi"], env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 127
    assert "not in PATH" in done.stderr


def test_the_program_is_ours_alone_and_takes_no_advice(inside: Inside, tmp_path: Path) -> None:
    inside.attach(gpus=1)
    assert inside.program.parent.stat().st_mode & 0o777 == 0o700
    assert inside.program.stat().st_mode & 0o777 == 0o700
    (tmp_path / "_socket.py").write_text("print('taken over')")
    (tmp_path / "sitecustomize.py").write_text("print('taken over')")
    environ = inside.environ(PYTHONPATH=str(tmp_path), PYTHONSTARTUP=str(tmp_path / "_socket.py"))
    done = subprocess.run(
        ["nvidia-smi", "-L"], env=environ, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.startswith("GPU 0: ")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_is_written_by_the_caller_and_a_loop_goes_on(inside: Inside, tmp_path: Path) -> None:
    inside.attach(gpus=1)
    question = ("--query-gpu=index", "--format=csv")
    relative = subprocess.run(
        ["nvidia-smi", *question, "-f", "out"], env=inside.environ(), cwd=tmp_path
    )
    assert relative.returncode == 0
    assert (tmp_path / "out").read_text() == "index\n0\n"
    refused = inside.run("-f", str(tmp_path / "none" / "out"))
    assert refused.stdout == f"Failed to create the log file {tmp_path}/none/out\n\n"
    assert refused.returncode == 255
    command = ["nvidia-smi", *question, "-lms", "20"]
    with subprocess.Popen(command, env=inside.environ(), stdout=subprocess.PIPE) as loop:
        assert loop.stdout is not None
        assert [loop.stdout.readline() for _ in range(4)] == [b"index\n", b"0\n", b"0\n", b"0\n"]
        loop.send_signal(signal.SIGINT)
    assert loop.returncode == -signal.SIGINT, "as any program in C ends"


def test_what_the_driver_cannot_tell_is_one_value_less(inside: Inside, driver: FakeDriver) -> None:
    inside.attach(gpus=1)
    driver.fail("nvmlDeviceGetPowerUsage", 3)
    time.sleep(0.3)
    csv = inside.run("--query-gpu=power.draw,temperature.gpu", "--format=csv,noheader").stdout
    assert csv == "[N/A], 35\n"


def test_the_command_line_starts_programs_with_it(driver: FakeDriver) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "genv_jupyter.cli",
            "run",
            "0.5",
            "-q",
            "--",
            "sh",
            "-c",
            "nvidia-smi -L",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(f"GPU 0: NVIDIA Fake 24GiB (UUID: {driver.uuids[0]})"), done
    assert done.returncode == 0


def test_rest_says_the_same(inside: Inside) -> None:
    inside.attach(gpus=1)
    status, body = inside.client.call(
        "POST", f"environments/{inside.id}/nvidia-smi", b'{"args": ["-L"]}'
    )
    assert status == 200
    assert json.loads(body)["stdout"] == inside.run("-L").stdout
    for wrong in (b"{}", b'{"args": "-L"}', b'{"args": [1]}', b'{"args": [], "path": "/"}'):
        status, body = inside.client.call("POST", f"environments/{inside.id}/nvidia-smi", wrong)
        assert (status, json.loads(body)["code"]) == (400, "bad_request")


def test_an_instance_is_a_device_below_its_gpu(
    broker_home: Path, fake_driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: FakeDriver = fake_driver({"devices": mig_scenario()["devices"][1:]})
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    place = Inside()
    place.attach(devices=(instance_uuid(1, 1),))
    shown = place.run("-L").stdout
    assert shown == (
        f"GPU 0: NVIDIA Fake 24GiB (UUID: {made.uuids[0]})\n"
        f"  MIG 1g.5gb      Device  0: (UUID: {instance_uuid(1, 1)})\n"
    )
    csv = place.run("--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits").stdout
    assert csv == f"{instance_uuid(1, 1)}, 10240\n"
    assert "Enabled |" in place.run().stdout
    place.client.close()
