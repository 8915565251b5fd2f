"""Compute modes set through NVML, in the child process, against a fake driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.devices.nvml import NvmlSource
from genv_jupyter.devices.simulated import SimulatedSource
from genv_jupyter.devices.source import ModeSet
from tests.fakedriver import FakeDriver, device, uuid

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="NOT TESTED: only root changes compute modes"
)
A, B = uuid(0), uuid(1)
EXCLUSIVE = "exclusive_process"
Opener = Callable[..., NvmlSource]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with FakeDriver(tmp_path, {"devices": [device(0), device(1)]}) as driver:
        for name, value in driver.environ.items():
            monkeypatch.setenv(name, value)
        yield driver


@pytest.fixture
def open_nvml() -> Iterator[Opener]:
    sources: list[NvmlSource] = []

    def open_nvml(**options: Any) -> NvmlSource:
        sources.append(NvmlSource(**{"deadline": 60.0, **options}))
        return sources[-1]

    yield open_nvml
    for source in sources:
        source.close()


def test_a_mode_is_set_and_read_and_put_back(driver: FakeDriver, open_nvml: Opener) -> None:
    source = open_nvml()
    assert source.set_compute_mode(A, EXCLUSIVE, expected="default") == ModeSet("default")
    assert (driver.compute_mode(A), driver.compute_mode(B)) == (3, 0)
    assert [it.compute_mode for it in source.read().devices] == [EXCLUSIVE, "default"]
    assert source.set_compute_mode(A, "default", expected=EXCLUSIVE) == ModeSet(EXCLUSIVE)
    assert driver.compute_mode(A) == 0


def test_what_somebody_else_has_set_is_left(driver: FakeDriver, open_nvml: Opener) -> None:
    source = open_nvml()
    source.read()
    driver.update_device(A, compute_mode=2)
    assert source.set_compute_mode(A, EXCLUSIVE, expected="default") == ModeSet("prohibited")
    assert driver.compute_mode(A) == 2


def test_asking_changes_nothing(driver: FakeDriver, open_nvml: Opener) -> None:
    driver.fail("nvmlDeviceSetComputeMode", "crash")
    assert open_nvml().set_compute_mode(A, "default", expected="default") == ModeSet("default")


def test_why_it_cannot_be_set_is_told(driver: FakeDriver, open_nvml: Opener) -> None:
    driver.update(may_administer=False)
    source = open_nvml()
    found, trouble = source.set_compute_mode(A, EXCLUSIVE, expected="default")
    assert found == "default" and trouble == "Insufficient Permissions"
    assert source.set_compute_mode("GPU-none", EXCLUSIVE, expected="default").trouble
    assert len(source.read().devices) == 2


@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_a_driver_that_fails_there_is_given_up_in_time(
    driver: FakeDriver, open_nvml: Opener, fault: Any
) -> None:
    source = open_nvml(deadline=3.0)
    source.read()
    driver.fail("nvmlDeviceSetComputeMode", fault, A)
    found, trouble = source.set_compute_mode(A, EXCLUSIVE, expected="default")
    assert found is None and trouble is not None and "GPU 0" in trouble
    inventory = source.read()
    while inventory.devices[1].health != "ok":  # a busy machine: the next child is being opened
        inventory = source.read()
    assert inventory.devices[0].health == "unknown", "it is set aside, and the other goes on"


def test_simulated_devices_have_none_to_be_set() -> None:
    source = SimulatedSource.from_spec("1x24GiB")
    name = source.devices[0].uuid
    assert source.set_compute_mode(name, EXCLUSIVE, expected="default").trouble
    assert source.read().devices[0].compute_mode == "default"


def test_after_the_end_nothing_is_set(driver: FakeDriver, open_nvml: Opener) -> None:
    source = open_nvml()
    source.close()
    assert source.set_compute_mode(A, EXCLUSIVE, expected="default").trouble
    assert driver.compute_mode(A) == 0


def test_only_root_may(driver: FakeDriver) -> None:
    """The fake driver's own manners: as NVIDIA's, it lets nobody else."""
    import subprocess
    import sys

    setpriv = "setpriv", "--reuid=4711", "--regid=4711", "--clear-groups"
    capability = "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"
    code = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "try: n.nvmlDeviceSetComputeMode(h, 3)\n"
        "except n.NVMLError_NoPermission: print('refused')"
    )
    told = subprocess.run(
        [*setpriv, *capability, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "refused" and driver.compute_mode(A) == 0
