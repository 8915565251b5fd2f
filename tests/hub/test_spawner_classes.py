"""What the spawners of others make of a reservation: their real code, up to the programs they run.

There is neither systemd nor Docker here: a ``systemd-run`` that writes down its arguments stands in
for the one, and what would be sent to the daemon is looked at for the other.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from dockerspawner import DockerSpawner
from jupyterhub.spawner import Spawner
from systemdspawner import SystemdSpawner, systemd
from traitlets import TraitError
from traitlets.config import Config

from genv_jupyter.errors import UnknownDevice
from genv_jupyter.hub import nodes, spawner
from genv_jupyter.hub.reservations import GpuReservations, Refused, owner_of

ONE, TWO = "GPU-11111111-2222-3333-4444-555555555555", "GPU-22222222-2222-3333-4444-555555555555"
ACCOUNT = pwd.getpwuid(os.getuid()).pw_name


class _Plain:
    """What needs a whole Hub is left out."""

    def get_env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"]}

    def get_args(self) -> list[str]:
        return []


class PlainSystemd(_Plain, SystemdSpawner):  # type: ignore[misc]
    pass


class OursSystemd(spawner.GpuSystemdMixin, PlainSystemd):  # type: ignore[misc]
    pass


class PlainDocker(_Plain, DockerSpawner):  # type: ignore[misc]
    pass


class OursDocker(spawner.GpuDockerMixin, PlainDocker):  # type: ignore[misc]
    pass


def user(name: str = ACCOUNT) -> SimpleNamespace:
    return SimpleNamespace(name=name, id=7, escaped_name=name, url=f"/user/{name}/", groups=[])


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """What the driver tells of two devices in ``/proc``."""
    for minor, uuid in ((0, ONE), (3, TWO)):
        directory = tmp_path / "gpus" / f"0000:0{minor}:00.0"
        directory.mkdir(parents=True)
        told = f"Model: \t\t NVIDIA L4\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (directory / "information").write_text(told)
    return tmp_path / "gpus"


def test_device_files_are_those_that_the_driver_tells(driver: Path) -> None:
    allowed = nodes.device_allow([TWO], driver)
    assert allowed == [
        "/dev/nvidia3 rw",
        "/dev/nvidiactl rw",
        "/dev/nvidia-uvm rw",
        "/dev/nvidia-uvm-tools rw",
    ]
    assert nodes.device_allow([], driver) == []
    for unknown in ("MIG-1", "GPU-0", ""):
        with pytest.raises(UnknownDevice):
            nodes.device_allow([ONE, unknown], driver)


@pytest.mark.parametrize("devices", [(), (TWO,), (ONE, TWO)])
def test_a_unit_may_open_what_is_reserved_and_nothing_else(
    devices: tuple[str, ...], driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "arguments"
    programs = {
        "systemd-run": f'printf "%s\\n" "$@" > {written}',
        "systemctl": f"[ $1 = is-active ] && exec test -e {written}; echo systemd 252",
    }
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "RUN_ROOT", str(tmp_path))
    monkeypatch.setattr(nodes, "DRIVER", driver)
    (tmp_path / f"jupyter-{ACCOUNT}-singleuser").mkdir(mode=0o700)
    made = OursSystemd(user=user(), cmd=["true"])
    made.username_template = "{USERNAME}"
    made.unit_extra_properties = {"LimitNOFILE": "64"}
    made.gpu_devices = devices
    asyncio.run(made.start())
    told = [it for it in written.read_text().splitlines() if it.startswith("--property=")]
    assert "--property=LimitNOFILE=64" in told
    assert "--property=DevicePolicy=closed" in told
    files = [it.partition("DeviceAllow=")[2] for it in told if "DeviceAllow" in it]
    assert files == nodes.device_allow(devices, driver)
    assert bool(files) == bool(devices)
    assert made.unit_extra_properties == {"LimitNOFILE": "64"}


@pytest.mark.parametrize("devices", [(), (ONE, TWO)])
def test_a_container_has_what_is_reserved_and_nothing_else(
    devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = docker.APIClient(version="1.45")  # asks nobody before the first call
    monkeypatch.setattr(DockerSpawner, "client", api)
    sent: dict[str, Any] = {}

    async def send(method: str, *args: Any, **more: Any) -> dict[str, str]:
        sent.update(more)
        return {"Id": "made"}

    made = OursDocker(user=user("ann"), cmd=["true"])
    made.extra_host_config = {"init": True}
    made.docker = send
    made.gpu_devices = devices
    asyncio.run(made.create_object())
    config = sent["host_config"]
    assert config["Init"] is True
    requests = config.get("DeviceRequests", [])
    assert [it["DeviceIDs"] for it in requests] == ([[*devices]] if devices else [])
    assert [it["Capabilities"] for it in requests] == ([[["gpu"]]] if devices else [])
    assert made.extra_host_config == {"init": True}
    api.close()


def test_the_owner_is_the_account_that_the_server_runs_as() -> None:
    plain = SimpleNamespace(user=user("ann"))
    assert owner_of(plain) == "ann"
    named = SimpleNamespace(user=user("ann"), username_template="jupyter-{USERNAME}")
    assert owner_of(named) == "jupyter-ann"


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"half": {"label": "Half", "request": {"fraction": 2.5}}},
        {"half": {"label": "Half", "request": {}}},
        {"half": {"label": "Half", "gpu": 1}},
        {"half": {"request": None}},
        {"half": "0.5"},
    ],
)
def test_choices_that_cannot_be_read_are_told_when_the_hub_starts(choices: object) -> None:
    with pytest.raises(TraitError, match="choices"):
        GpuReservations(config=Config(GpuReservations={"choices": choices})).choices  # noqa: B018


def test_one_choice_is_no_question_and_names_are_no_markup() -> None:
    evil = {"a\"'><script>": {"label": "<b>&", "request": None}, "none": {"label": "No GPU"}}
    of = SimpleNamespace(user=user("ann"), user_options={"gpu": ["unhashable"]}, name="")

    async def form(choices: object) -> str:
        config = Config(GpuReservations={"choices": choices, "socket": "/nowhere"})
        return await GpuReservations(config=config).form(of)

    page = asyncio.run(form(evil))
    assert "<script>" not in page and "<b>" not in page
    assert page.count(" checked") == 1
    assert asyncio.run(form({"none": {"label": "No GPU"}})) == ""

    async def by_user(spawner: Any) -> dict[str, Any]:
        return {spawner.user.name: {"label": "Mine"}, "none": {"label": "No GPU"}}

    assert 'value="ann"' in asyncio.run(form(by_user))


def test_the_hub_form_of_the_spawner_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(_Plain, Spawner):  # type: ignore[misc]
        async def start(self) -> None: ...
        async def stop(self, now: bool = False) -> None: ...
        async def poll(self) -> int:
            return 0

    class Ours(spawner.GpuSpawnerMixin, Plain):  # type: ignore[misc]
        pass

    made = Ours(user=user("ann"), config=Config(GpuReservations={"socket": "/nowhere"}))
    made.options_form = "<input name='key'>"
    page = asyncio.run(made.get_options_form())
    assert page.startswith("<input name='key'>") and 'name="gpu"' in page
    made.options_from_form = lambda form: {"key": form["key"][0], "seen": sorted(form)}
    found = made.run_options_from_form({"key": ["k"], "gpu": ["half"]})
    assert found == {"key": "k", "seen": ["key"], "gpu": "half"}
    assert made.options_from_query({"key": ["k"], "gpu": ["none"]})["gpu"] == "none"


def test_what_is_reserved_is_told_while_the_server_starts() -> None:
    class Plain(_Plain, Spawner):  # type: ignore[misc]
        async def start(self) -> None: ...
        async def stop(self, now: bool = False) -> None: ...
        async def poll(self) -> int:
            return 0

    class Ours(spawner.GpuSpawnerMixin, Plain):  # type: ignore[misc]
        pass

    async def story(when_down: str) -> list[str]:
        config = Config(GpuReservations={"socket": "/nowhere", "when_down": when_down})
        made = Ours(user=user("ann"), config=config)
        made.user_options = {"gpu": "half"}
        await made.run_pre_spawn_hook()
        assert made.gpu_reservation is None and "GENV_JUPYTER_RESERVATION" not in made.get_env()
        return [event["message"] async for event in made.progress()]

    said = asyncio.run(story("start without"))
    assert said[:2] == [
        "Half a GPU is being reserved.",
        "The GPU daemon does not answer: the server starts without a reservation.",
    ]
    with pytest.raises(Refused) as refusal:
        asyncio.run(story("refuse"))
    assert refusal.value.status_code == 503
    assert "Start your server without a GPU" in refusal.value.jupyterhub_message
