"""The kernel provisioner: environments over starts, restarts, deaths and changes of kernel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from genv_jupyter.api.client import Client
from genv_jupyter.errors import NoCapacity
from genv_jupyter.model import NewEnvironment, Request
from genv_jupyter.server import host
from tests.integration.servers import (
    CONFIG,
    IPYKERNEL,
    PATIENCE,
    VISIBLE,
    AddKernelspec,
    Server,
    another_process,
    attach,
    eventually,
    started_with,
)

WHOLE = {"gpus": 1}
BOTH = {"gpus": 2}


@pytest.fixture
def jp_server_config(request: pytest.FixtureRequest) -> Config:
    """Restarts follow quickly, unless the test says otherwise, and are given up soon."""
    config = Config(json.loads(json.dumps(CONFIG)))
    config.AsyncIOLoopKernelRestarter.time_to_dead = getattr(request, "param", 0.2)
    config.AsyncIOLoopKernelRestarter.restart_limit = 2
    return config


class Competitor:
    """Another process of the same user that wants everything, all the time."""

    def __init__(self) -> None:
        self.client = Client(start=False)
        self.id = self.client.create(
            NewEnvironment(kind="command", pid=os.getpid(), name="competitor")
        ).id
        self.tries = 0

    def take(self, request: Request) -> bool:
        """Try once; say whether it was given."""
        self.tries += 1
        try:
            return bool(self.client.attach(self.id, request).grants)
        except NoCapacity:
            return False

    async def poll(self, request: Request) -> None:
        """Try a hundred times a second until it is given."""
        while not await asyncio.to_thread(self.take, request):
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def competition(request: Request) -> Any:
    """Let a competitor poll; fail if it is given anything meanwhile."""
    competitor = Competitor()
    polling = asyncio.create_task(competitor.poll(request))
    try:
        yield competitor
        assert not polling.done(), "the competitor got the kernel's device"
        assert competitor.tries > 0
    finally:
        polling.cancel()
        await asyncio.wait({polling})
        competitor.client.close()


# -- starts ---------------------------------------------------------------------------------------


async def test_a_kernel_without_grant_is_told_the_policy(server: Server) -> None:
    kernel = await server.start_kernel()
    env = await started_with(server, kernel)
    assert env["GENV_JUPYTER_ENVIRONMENT"] == kernel
    assert env["GENV_JUPYTER_UNATTACHED"] == "hide"
    assert env["GENV_JUPYTER_ON_IMPORT"] == "notice"
    assert "CUDA_VISIBLE_DEVICES" not in env  # the stub in the kernel hides
    assert "GENV_JUPYTER_NOTICE" not in env


async def test_a_kernelspecs_request_is_there_from_the_start(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    spec = add_kernelspec("half", IPYKERNEL, config={"fraction": 0.5, "name": "training"})
    kernel = await server.start_kernel(spec)
    environment = await server.known(kernel, applied="live")
    assert environment["name"] == "training"
    (grant,) = environment["grants"]
    env = await started_with(server, kernel)
    assert env["CUDA_VISIBLE_DEVICES"] == grant["device"]
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "GENV_JUPYTER_UNATTACHED" not in env


async def test_a_full_gpu_stops_no_kernel_from_starting(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    first = await server.start_kernel()
    await attach(server, first, BOTH)
    kernel = await server.start_kernel(add_kernelspec("one", IPYKERNEL, config=WHOLE))
    env = await started_with(server, kernel)
    assert env["GENV_JUPYTER_UNATTACHED"] == "hide"
    assert "No GPU" in env["GENV_JUPYTER_NOTICE"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"fraction": 1.5}, "a fraction lives on one device"),
        ({"memory": "4X"}, "not an amount of memory"),
        ({"gpus": "many"}, "cannot be read"),
        ({"gpu": 1}, "Unknown in metadata.kernel_provisioner.config: gpu."),
    ],
)
async def test_a_bad_request_in_a_kernelspec_is_said_and_stops_nothing(
    server: Server, add_kernelspec: AddKernelspec, config: dict[str, Any], said: str
) -> None:
    kernel = await server.start_kernel(add_kernelspec("bad", IPYKERNEL, config=config))
    env = await started_with(server, kernel)
    assert said in env["GENV_JUPYTER_NOTICE"]
    assert env["GENV_JUPYTER_UNATTACHED"] == "hide"


async def test_a_kernelspecs_visible_devices_limit_its_pool(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    spec = add_kernelspec("second", IPYKERNEL, env={"CUDA_VISIBLE_DEVICES": "1"})
    kernel = await server.start_kernel(spec)
    environment = await attach(server, kernel, WHOLE)
    devices = (await server.gpu("GET", "devices")).json
    assert [grant["device"] for grant in environment["grants"]] == [devices[1]["uuid"]]
    refused = await server.gpu("PUT", f"environments/{kernel}", BOTH)
    assert refused.status == 422


async def test_only_uuids_are_managed(server: Server) -> None:
    kernel = await server.app.kernel_manager.start_kernel(kernel_id="not-a-uuid")
    env = await started_with(server, kernel)
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "not a UUID" in env["GENV_JUPYTER_NOTICE"]
    assert "GENV_JUPYTER_ENVIRONMENT" not in env
    assert (await server.gpu("GET", "environments/not-a-uuid")).status == 404


async def test_what_the_server_inherited_from_a_kernel_is_not_passed_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENV_JUPYTER_ENVIRONMENT", str(uuid.uuid4()))
    monkeypatch.setenv("GENV_JUPYTER_NOTICE", "of another kernel")
    kernel = await server.start_kernel()
    env = await started_with(server, kernel)
    assert env["GENV_JUPYTER_ENVIRONMENT"] == kernel
    assert "GENV_JUPYTER_NOTICE" not in env


async def test_a_failed_launch_gives_back_what_was_reserved(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    spec = add_kernelspec("missing", ["/nonexistent/python", "{connection_file}"], config=BOTH)
    answer = await server.call("POST", "api", "kernels", body={"name": spec})
    assert answer.status == 500

    async def free() -> bool:
        return (await server.gpu("GET", "environments")).json == []

    await eventually(free, "the reservation ends")


# -- restarts and ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("now", [False, True])
async def test_a_restart_keeps_the_environment_against_a_competitor(
    server: Server, now: bool
) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, BOTH)
    async with competition(Request(memory="1G")):
        await server.app.kernel_manager.restart_kernel(kernel, now=now)
        after = await another_process(server, kernel, environment["pid"])
        assert [g["device"] for g in after["grants"]] == [
            g["device"] for g in environment["grants"]
        ]
        assert after["applied"] == "live"
    env = await started_with(server, kernel)
    assert env["CUDA_VISIBLE_DEVICES"] == ",".join(g["device"] for g in after["grants"])


@pytest.mark.parametrize("jp_server_config", [3.0], indirect=True)
async def test_a_killed_kernel_keeps_its_devices_against_a_competitor(server: Server) -> None:
    """Its restart comes as late as Jupyter's do: the broker has seen it dead meanwhile."""
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, BOTH)
    async with competition(Request(memory="1G")):
        os.kill(environment["pid"], signal.SIGKILL)
        after = await another_process(server, kernel, environment["pid"])
        assert len(after["grants"]) == 2
    visible = ",".join(grant["device"] for grant in after["grants"])
    assert await server.evaluate(kernel, VISIBLE) == repr(visible)


async def test_shutdown_gives_everything_back(server: Server) -> None:
    kernel = await server.start_kernel()
    await attach(server, kernel, BOTH)
    assert (await server.call("DELETE", "api", "kernels", kernel)).status == 204
    assert (await server.gpu("GET", f"environments/{kernel}")).status == 404
    devices = (await server.gpu("GET", "devices")).json
    assert [device["grants"] for device in devices] == [[], []]


async def test_given_up_restarts_give_everything_back(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    argv = [sys.executable, "-c", "raise SystemExit(1)", "{connection_file}"]
    spec = add_kernelspec("dying", argv, config=BOTH)
    answer = await server.call("POST", "api", "kernels", body={"name": spec})
    kernel = answer.json["id"]

    async def gone() -> bool:
        return (await server.gpu("GET", f"environments/{kernel}")).status == 404

    await eventually(gone, "the environment ends")
    assert kernel not in server.app.kernel_manager
    assert all(not device["grants"] for device in (await server.gpu("GET", "devices")).json)


async def test_the_servers_end_gives_everything_back(server: Server) -> None:
    kernel = await server.start_kernel()
    await attach(server, kernel, BOTH)
    await server.app.cleanup_extensions()
    await server.app.cleanup_kernels()
    assert server.client.environments() == []
    assert all(not device.grants for device in server.client.devices())


# -- a notebook changes its kernel ----------------------------------------------------------------


async def test_a_new_kernel_of_a_notebook_takes_over(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    other = add_kernelspec("other", IPYKERNEL)
    session, old = await server.open_notebook("llm.ipynb")
    environment = await attach(server, old, BOTH)
    async with competition(Request(memory="1G")):
        body = {"kernel": {"name": other}}
        answer = await server.call("PATCH", "api", "sessions", session, body=body)
        assert answer.status == 200, answer.body
        new = answer.json["kernel"]["id"]
        assert new != old
        after = await server.known(new, previous=None, applied="live")
    assert [g["device"] for g in after["grants"]] == [g["device"] for g in environment["grants"]]
    env = await started_with(server, new)
    assert env["CUDA_VISIBLE_DEVICES"] == ",".join(g["device"] for g in after["grants"])
    assert (await server.gpu("GET", f"environments/{old}")).status == 404


async def test_a_new_kernel_that_fails_takes_nothing(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    broken = add_kernelspec("broken", ["/nonexistent/python", "{connection_file}"])
    session, old = await server.open_notebook("llm.ipynb")
    environment = await attach(server, old, BOTH)
    body = {"kernel": {"name": broken}}
    answer = await server.call("PATCH", "api", "sessions", session, body=body)
    assert answer.status == 501

    async def alone() -> bool:
        rows = (await server.gpu("GET", "environments")).json
        return [row["id"] for row in rows] == [old]

    await eventually(alone, "the failed kernel is forgotten")
    assert (await server.environment(old))["grants"] == environment["grants"]
    await server.call("DELETE", "api", "sessions", session)
    assert (await server.gpu("GET", "environments")).json == []


async def test_a_console_of_the_same_name_takes_nothing_over(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    _, old = await server.open_notebook("llm.ipynb")
    await attach(server, old, WHOLE)
    session, console = await server.open_notebook("console-1/llm.ipynb", kind="console")
    assert (await server.known(console, state="released"))["previous"] is None
    await attach(server, console, WHOLE)
    body = {"kernel": {"name": add_kernelspec("other", IPYKERNEL)}}
    answer = await server.call("PATCH", "api", "sessions", session, body=body)
    changed = answer.json["kernel"]["id"]
    assert (await server.known(changed, state="released"))["grants"] == []
    assert len((await server.environment(old))["grants"]) == 1


# -- without a server, and by configuration -------------------------------------------------------


@pytest.fixture
def own_host(broker_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process plays the server of its kernels, and leaves the broker with the test."""
    monkeypatch.setattr(host, "_own", None)
    yield
    host.own_host().reports.close().result(PATIENCE)


def test_nbclient_starts_kernels_with_their_devices(
    own_host: None,
    provisioner_factory: None,
    jp_environ: None,
    add_kernelspec: AddKernelspec,
) -> None:
    import nbformat
    from nbclient import NotebookClient

    spec = add_kernelspec("half", IPYKERNEL, config={"fraction": 0.5})
    source = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    with contextlib.closing(Client()) as client:
        client.health()  # a broker that is there; starting one takes longer than a kernel waits
        NotebookClient(notebook, kernel_name=spec).execute()
        assert notebook.cells[0].outputs[0].text.startswith("GPU-")
        assert client.environments() == []
        assert all(not device.grants for device in client.devices())


async def test_a_provisioner_that_the_user_chose_stays(
    server: Server, add_kernelspec: AddKernelspec
) -> None:
    spec = add_kernelspec("local", IPYKERNEL, config={}, provisioner="local-provisioner")
    answer = await server.call("POST", "api", "kernels", body={"name": spec})
    env = await started_with(server, answer.json["id"])
    assert not any(name.startswith("GENV_JUPYTER_UNATTACHED") for name in env)
