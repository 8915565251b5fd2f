"""Which devices a process sees, and when that is decided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakedriver import (
    FakeDriver,
    default_scenario,
    device,
    instance_uuid,
    mig_scenario,
    uuid,
)
from tests.fakedriver.fixtures import MakeDriver
from tests.fakedriver.remote import Remote, bare

NOT_INITIALIZED, NO_DEVICE = 3, 100


@pytest.fixture(scope="module")
def before_init(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """A process that never initialises itself, of three devices, the last one the fastest."""
    devices = [device(0), device(1), device(2, speed=9)]
    driver = FakeDriver(tmp_path_factory.mktemp("driver"), {"devices": devices})
    with driver, Remote(driver) as process:
        yield process


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        ("0,1,2", (2, 0, 1)),  # fastest first
        ("1", (0,)),
        (" 1 , 0", (0, 2)),
        ("0,-1,1", (2,)),
        ("0,7,1", (2,)),
        ("1gpu2", (0,)),
        ("NoDevFiles", ()),
        ("", ()),
        ("0,0", ()),
        (uuid(1), (1,)),
        (f"{uuid(1)},{uuid(0)}", (1, 0)),
        (uuid(0)[:9], (0,)),
        ("GPU-", ()),  # the beginning of all three
        (f"0,{uuid(2)}", ()),  # one device by two names
        (f"{uuid(1)},GPU-ffffffff,{uuid(0)}", (1,)),
        (uuid(1).removeprefix("GPU-"), ()),
    ],
)
def test_visible_devices_are_those_of_the_variable(
    before_init: Remote, variable: str, seen: tuple[int, ...]
) -> None:
    error, devices = before_init(f"visible_with(CUDA_VISIBLE_DEVICES={variable!r})")
    assert devices == bare(*(uuid(index) for index in seen))
    assert error == (0 if seen else NO_DEVICE)


def test_all_devices_are_visible_without_the_variable(before_init: Remote) -> None:
    assert before_init("visible_with()") == [0, bare(uuid(2), uuid(0), uuid(1))]
    by_bus = before_init("visible_with(CUDA_DEVICE_ORDER='PCI_BUS_ID')")
    assert by_bus == [0, bare(uuid(0), uuid(1), uuid(2))]


def test_calls_before_init_and_after_one_that_failed_are_refused(
    fake_driver: MakeDriver,
) -> None:
    with Remote(fake_driver(), CUDA_VISIBLE_DEVICES="") as process:
        assert process("cuda.cuDeviceGetCount()[0]") == NOT_INITIALIZED
        assert process("cuda.cuCtxGetCurrent()[0]") == NOT_INITIALIZED
        assert process("cuda.cuInit(0)") == [NO_DEVICE]
        assert process("cuda.cuDeviceGetCount()[0]") == NOT_INITIALIZED


@pytest.mark.parametrize("rereads", [False, True])
def test_variable_is_read_again_after_a_failure_only_if_the_scenario_says_so(
    fake_driver: MakeDriver, rereads: bool
) -> None:
    driver = fake_driver({**default_scenario(), "cuinit_rereads": rereads})
    with Remote(driver, CUDA_VISIBLE_DEVICES="") as process:
        assert process("cuda.cuInit(0)") == [NO_DEVICE]
        process(f"os.environ['CUDA_VISIBLE_DEVICES'] = {driver.uuids[1]!r}")
        assert process("visible()") == ([0, bare(uuid(1))] if rereads else [NO_DEVICE, []])


def test_variable_is_ignored_once_initialised(fake_driver: MakeDriver) -> None:
    with Remote(fake_driver(), CUDA_VISIBLE_DEVICES=uuid(0)) as process:
        assert process("visible()") == [0, bare(uuid(0))]
        process(f"os.environ['CUDA_VISIBLE_DEVICES'] = {uuid(1)!r}")
        assert process("visible()") == [0, bare(uuid(0))]


def test_variable_set_in_a_living_process_counts_until_init(fake_driver: MakeDriver) -> None:
    with Remote(fake_driver(), CUDA_VISIBLE_DEVICES="") as process:
        process(f"os.environ['CUDA_VISIBLE_DEVICES'] = {uuid(1)!r}")
        assert process("visible()") == [0, bare(uuid(1))]


def test_fork_after_init_is_poisoned(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as process:
        process("cuda.cuInit(0); context()")
        assert process("in_fork(lambda: cuda.cuDeviceGetCount()[0])") == NOT_INITIALIZED
        assert process("in_fork(lambda: cuda.cuInit(0)[0])") == NOT_INITIALIZED
        assert process("cuda.cuDeviceGetCount()[0]") == 0
        assert [context.pid for context in driver.contexts()] == [process.pid]


# ---- MIG ----


@pytest.fixture(scope="module")
def before_init_of_mig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    driver = FakeDriver(tmp_path_factory.mktemp("driver"), mig_scenario())
    with driver, Remote(driver) as process:
        yield process


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, instance_uuid(1, 0)),  # one instance, and then no whole device
        ("0", uuid(0)),
        ("1", instance_uuid(1, 0)),
        (uuid(1), instance_uuid(1, 0)),
        (instance_uuid(1, 1), instance_uuid(1, 1)),
        (instance_uuid(1, 1)[:12], instance_uuid(1, 1)),
        (f"{instance_uuid(1, 1)},{instance_uuid(1, 0)}", instance_uuid(1, 1)),
        (f"MIG-{uuid(1)}/8/0", instance_uuid(1, 1)),
    ],
)
def test_process_sees_one_instance(
    before_init_of_mig: Remote, variable: str | None, seen: str
) -> None:
    variables = "" if variable is None else f"CUDA_VISIBLE_DEVICES={variable!r}"
    assert before_init_of_mig(f"visible_with({variables})") == [0, bare(seen)]
