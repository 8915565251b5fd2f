"""Under the daemon of a host GPUs are hidden from every kernel that has none, whatever it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.isolation.environ import PROGRAMS
from tests.integration.daemons import Daemon, serving
from tests.integration.servers import (
    IPYKERNEL,
    VISIBLE,
    AddKernelspec,
    Server,
    attach,
    started_with,
)


@pytest.fixture(autouse=True)
def daemon(broker_home: Path) -> Iterator[Daemon]:
    """In the place of the user's own, which every server of a test has."""
    with pytest.MonkeyPatch.context() as patch, serving(patch) as made:
        yield made


async def test_a_kernel_without_a_grant_is_started_without_devices(server: Server) -> None:
    kernel = await server.start_kernel()
    env = await started_with(server, kernel)
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["PATH"].startswith(f"{env[PROGRAMS]}:"), "and its nvidia-smi shows none"
    assert await server.evaluate(kernel, VISIBLE) == "''"
    held = await attach(server, kernel, {"fraction": 0.5})
    assert await server.evaluate(kernel, VISIBLE) == repr(held["grants"][0]["device"])


async def test_one_that_may_see_all_does(server: Server, add_kernelspec: AddKernelspec) -> None:
    spec = add_kernelspec("all", IPYKERNEL, config={"unattached": "all"})
    kernel = await server.start_kernel(spec)
    assert "CUDA_VISIBLE_DEVICES" not in await started_with(server, kernel)
