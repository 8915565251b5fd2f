"""The kernel provisioner fails open: whatever is broken on our side, kernels start."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.servers import (
    IPYKERNEL,
    VISIBLE,
    AddKernelspec,
    Server,
    attach,
    eventually,
    started_with,
)

WHOLE = {"gpus": 1}


@pytest.fixture
def hung(server: Server) -> Iterator[int]:
    """The broker hangs, and goes on after the test."""
    pid = server.client.health().pid
    os.kill(pid, signal.SIGSTOP)
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def test_a_kernel_starts_hidden_while_the_broker_hangs(server: Server, hung: int) -> None:
    answer = await server.call("POST", "api", "kernels", body={"name": "python3"})
    assert answer.status == 201
    kernel = answer.json["id"]
    env = await started_with(server, kernel)
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "broker" in env["GENV_JUPYTER_NOTICE"]
    assert await server.evaluate(kernel, "6 * 7") == "42"
    os.kill(hung, signal.SIGCONT)
    found = await server.known(kernel, state="released")  # it is told all when it is back
    assert found["pid"] == server.manager(kernel).provisioner.pid


async def test_a_restart_keeps_its_devices_while_the_broker_hangs(
    server: Server, request: pytest.FixtureRequest
) -> None:
    kernel = await server.start_kernel()
    environment = await attach(server, kernel, WHOLE)  # while it lives
    request.getfixturevalue("hung")
    await server.app.kernel_manager.restart_kernel(kernel)
    env = await started_with(server, kernel)
    assert env["CUDA_VISIBLE_DEVICES"] == environment["grants"][0]["device"]
    assert "broker" in env["GENV_JUPYTER_NOTICE"]


async def test_a_restart_brings_nothing_back_while_the_broker_hangs(
    server: Server, add_kernelspec: AddKernelspec, request: pytest.FixtureRequest
) -> None:
    kernel = await server.start_kernel(add_kernelspec("one", IPYKERNEL, config=WHOLE))
    gone = await server.gpu("DELETE", f"environments/{kernel}")
    assert gone.json["state"] == "released"
    request.getfixturevalue("hung")
    await server.app.kernel_manager.restart_kernel(kernel)
    env = await started_with(server, kernel)
    assert "CUDA_VISIBLE_DEVICES" not in env
    assert env["GENV_JUPYTER_UNATTACHED"] == "hide"


async def test_an_answer_that_comes_too_late_is_not_lost(
    server: Server, add_kernelspec: AddKernelspec, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = server.host.reports.link.reports
    attach, given = reports.attach, threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        environment = attach(*args, **kwargs)
        given.wait(30)
        return environment

    monkeypatch.setattr(reports, "attach", slow)
    spec = add_kernelspec("one", IPYKERNEL, config=WHOLE)
    answer = await server.call("POST", "api", "kernels", body={"name": spec})
    env = await started_with(server, answer.json["id"])
    given.set()
    assert "did not answer" in env["GENV_JUPYTER_NOTICE"]
    (grant,) = (await server.known(answer.json["id"], applied="live"))["grants"]
    assert env["CUDA_VISIBLE_DEVICES"] == grant["device"]  # the event stream was quicker


async def test_what_was_taken_back_during_a_start_is_hidden_after_it(
    server: Server, add_kernelspec: AddKernelspec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from genv_jupyter.server.provisioner import GenvProvisioner

    launch = GenvProvisioner.launch_kernel

    async def after_a_detach(self: Any, *args: Any, **kwargs: Any) -> Any:
        assert server.client.detach(self.kernel_id).grants[0].state == "draining"
        return await launch(self, *args, **kwargs)

    monkeypatch.setattr(GenvProvisioner, "launch_kernel", after_a_detach)
    kernel = await server.start_kernel(add_kernelspec("one", IPYKERNEL, config=WHOLE))
    assert (await started_with(server, kernel))["CUDA_VISIBLE_DEVICES"].startswith("GPU-")

    async def hidden() -> bool:
        return await server.evaluate(kernel, VISIBLE) == "''"

    await eventually(hidden, "the device is hidden")
    await server.known(kernel, state="released")
