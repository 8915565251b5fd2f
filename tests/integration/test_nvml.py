"""The NVML source against a fake driver, through NVIDIA's bindings, and the real library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from genv_jupyter.devices import frames
from genv_jupyter.devices.child import Child
from genv_jupyter.devices.nvml import COMMAND, LONGEST_BACK_OFF, NvmlSource, child_environ
from genv_jupyter.devices.source import DeviceReading, Inventory
from tests.debian import unpacked
from tests.fakedriver import (
    GIB,
    MIB,
    FakeDriver,
    ProcessSpec,
    device,
    instance,
    instance_uuid,
    uuid,
)

A, B, C = uuid(0), uuid(1), uuid(2)
M1, M2 = instance_uuid(1, 0), instance_uuid(1, 1)
FOREVER = time.monotonic() + 600
TOTAL, RESERVED = 24 * GIB, 512 * MIB


class Clock:
    """Time for back-off and retries, which passes when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


Opener = Callable[..., NvmlSource]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with FakeDriver(tmp_path, {"devices": [device(0), device(1), device(2)]}) as driver:
        for name, value in driver.environ.items():
            monkeypatch.setenv(name, value)
        yield driver


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_nvml(clock: Clock) -> Iterator[Opener]:
    sources: list[NvmlSource] = []

    def open_nvml(**options: Any) -> NvmlSource:
        # Generous, so that a busy machine is not taken for a hanging driver.
        sources.append(NvmlSource(**{"deadline": 60.0, "clock": clock, **options}))
        return sources[-1]

    yield open_nvml
    for source in sources:
        source.close()


def until(source: NvmlSource, wanted: Callable[[Inventory], bool]) -> Inventory:
    """Read again and again, as the broker does, until the reading is as it should become."""
    pause = threading.Event()
    for _ in range(600):
        inventory = source.read()
        if wanted(inventory):
            return inventory
        pause.wait(0.05)
    raise AssertionError(f"never came: {inventory}")


def healths(inventory: Inventory) -> dict[str, str]:
    return {each.uuid: each.health for each in inventory.devices}


def child_of(source: NvmlSource) -> int:
    assert source._current is not None
    return source._current.pid


def gone(pid: int) -> bool:
    """Whether a process ends within a generous time."""
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        threading.Event().wait(0.05)
    return False


def test_gpus_are_read_in_full(driver, open_nvml):
    driver.update(driver_version="570.1")
    driver.update_device(B, utilization={"gpu": 7, "memory": 3}, memory_external=GIB)
    graphics: ProcessSpec = {"pid": 40, "memory": GIB, "kind": "graphics"}
    driver.set_processes(B, [{"pid": 50, "memory": 2 * GIB, "kind": "compute"}, graphics])
    inventory = open_nvml().read()
    assert (inventory.trouble, inventory.driver_version) == (None, "570.1")
    assert not inventory.simulated
    read = inventory.devices[1]
    assert [(each.pid, each.memory, each.kind) for each in read.processes or ()] == [
        (40, GIB, "graphics"),
        (50, 2 * GIB, "compute"),
    ]
    assert read == DeviceReading(
        uuid=B,
        index=1,
        name="NVIDIA Fake 24GiB",
        memory_total=TOTAL,
        memory_reserved=RESERVED,
        memory_free=TOTAL - RESERVED - 4 * GIB,
        utilization=7,
        memory_utilization=3,
        temperature=35,
        power=25_000,
        power_limit=300_000,
        processes=read.processes,
        compute_mode="default",
        capability=(9, 0),
    )
    assert read.memory_used == 4 * GIB
    assert [each.uuid for each in inventory.devices] == [A, B, C]


def test_changes_show_in_the_next_reading_of_the_same_child(driver, open_nvml):
    source = open_nvml()
    source.read()
    pid = child_of(source)
    driver.update_device(A, utilization={"gpu": 99, "memory": 0}, compute_mode=3)
    driver.set_processes(A, [{"pid": 77, "memory": None, "kind": "mps"}])
    read = source.read().devices[0]
    assert (read.utilization, read.compute_mode) == (99, "exclusive_process")
    assert [(each.pid, each.memory, each.kind) for each in read.processes or ()] == [
        (77, None, "mps")
    ]
    assert child_of(source) == pid


def test_variables_that_hide_devices_do_not_reach_the_child(driver, open_nvml, monkeypatch):
    hiding = {
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_MPS_PIPE_DIRECTORY": "/nowhere",
        "NVML_MPS_DEVICE_ENUMERATION": "1",
        "GENV_ENVIRONMENT_ID": "7",
        "GENV_JUPYTER_SIMULATE": "1x1GiB",
    }
    for name, value in hiding.items():
        monkeypatch.setenv(name, value)
    source = open_nvml()
    assert len(source.read().devices) == 3
    variables = Path(f"/proc/{child_of(source)}/environ").read_bytes().decode().split("\0")
    assert not {variable.partition("=")[0] for variable in variables} & set(hiding)
    assert child_environ({"PATH": "/bin", **hiding}) == {"PATH": "/bin"}


@pytest.mark.parametrize("code", [3, 4, 999])
@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("nvmlDeviceGetName", {"name"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_total", "memory_reserved", "memory_free"}),
        ("nvmlDeviceGetMemoryInfo_v2", {"memory_reserved"}),
        ("nvmlDeviceGetUtilizationRates", {"utilization", "memory_utilization"}),
        ("nvmlDeviceGetTemperature", {"temperature"}),
        ("nvmlDeviceGetPowerUsage", {"power"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit"}),
        ("nvmlDeviceGetComputeRunningProcesses", {"processes"}),
        ("nvmlDeviceGetGraphicsRunningProcesses", set()),
        ("nvmlDeviceGetMPSComputeRunningProcesses", set()),
        ("nvmlDeviceGetComputeMode", {"compute_mode"}),
        ("nvmlDeviceGetCudaComputeCapability", {"capability"}),
        ("nvmlDeviceGetMigMode", set()),
    ],
)
def test_each_field_is_optional_on_its_own(driver, open_nvml, function, fields, code):
    if function == "nvmlDeviceGetMemoryInfo":  # a name without a version stands for all
        driver.fail("nvmlDeviceGetMemoryInfo_v2", code, A)
    driver.fail(function, code, A)
    inventory = open_nvml().read()
    sick, other = inventory.devices[0], inventory.devices[1]
    told = {name for name in DeviceReading.__struct_fields__ if getattr(other, name) is not None}
    assert {name for name in told if getattr(sick, name) is None} == fields
    assert (sick.uuid, sick.health, inventory.trouble) == (A, "ok", None)


def test_memory_that_can_no_longer_be_read_makes_the_device_unknown(driver, open_nvml):
    source = open_nvml()
    source.read()
    driver.fail("nvmlDeviceGetMemoryInfo", 999, A)
    driver.fail("nvmlDeviceGetMemoryInfo_v2", 999, A)
    inventory = source.read()
    assert healths(inventory) == {A: "unknown", B: "ok", C: "ok"}
    assert inventory.devices[0].memory_free == TOTAL - RESERVED


def test_gpu_that_has_to_be_reset_is_unknown(driver, open_nvml):
    source = open_nvml()
    source.read()
    driver.fail("nvmlDeviceGetUtilizationRates", 16, A)
    assert healths(source.read()) == {A: "unknown", B: "ok", C: "ok"}


def test_mig_instances_are_devices_and_their_gpu_is_not(driver, open_nvml):
    parts = [instance(1, 0), instance(1, 1, compute_instance=1, memory_total=10 * GIB)]
    driver.update_device(B, mig_capable=True, mig=parts)
    source = open_nvml()
    devices = source.read().devices
    assert [each.uuid for each in devices] == [A, M1, M2, C]
    first, second = devices[1:3]
    assert (first.kind, first.parent, first.parent_index, first.index) == ("mig", B, 1, None)
    assert (first.instance, second.instance) == ((7, 0), (8, 1))
    assert (first.memory_total, second.memory_total) == (5 * GIB, 10 * GIB)
    assert (first.utilization, first.processes) == (None, ())
    driver.update_device(B, mig=parts[1:])
    assert [each.uuid for each in source.read().devices] == [A, M2, C]
    driver.lose(B)
    assert healths(source.read()) == {A: "ok", M2: "lost", C: "ok"}


def test_gpu_in_mig_mode_without_instances_is_no_device(driver, open_nvml):
    driver.update_device(B, mig_capable=True, mig_enabled=True)
    inventory = open_nvml().read()
    assert healths(inventory) == {A: "ok", C: "ok"}
    assert [each.index for each in inventory.devices] == [0, 2]


def test_lost_gpu_stays_listed_and_comes_back_by_itself(driver, open_nvml):
    source = open_nvml()
    source.read()
    driver.lose(A)
    inventory = source.read()
    assert healths(inventory) == {A: "lost", B: "ok", C: "ok"}
    lost = inventory.devices[0]
    assert (lost.memory_total, lost.memory_free, lost.processes) == (TOTAL, None, None)
    driver.restore(A)
    assert healths(source.read()) == {A: "ok", B: "ok", C: "ok"}


def test_gpu_taken_out_is_lost_and_stays_so_for_a_fresh_child(driver, open_nvml, clock):
    source = open_nvml()
    source.read()
    pid = child_of(source)
    driver.remove_device(A)
    assert healths(source.read()) == {A: "lost", B: "ok", C: "ok"}
    clock.now += 1000
    inventory = until(source, lambda _: child_of(source) != pid)
    assert healths(inventory) == {A: "lost", B: "ok", C: "ok"}
    assert {each.uuid: each.index for each in inventory.devices} == {A: None, B: 0, C: 1}
    assert gone(pid)


def test_gpu_that_was_lost_before_anybody_saw_it_is_told(driver, open_nvml):
    driver.lose(B)
    inventory = open_nvml().read()
    assert healths(inventory) == {A: "ok", C: "ok"}
    assert "GPU 1 fell off the bus" in (inventory.trouble or "")


def test_what_cannot_be_is_left_out_and_flagged(driver, open_nvml):
    driver.set_processes(
        A,
        [
            {"pid": 4294967295, "memory": 1, "kind": "compute"},
            {"pid": 12, "memory": 500 * GIB, "kind": "compute"},
        ],
    )
    driver.update_device(B, utilization={"gpu": 4000, "memory": 0})
    driver.update_device(C, name="NVIDIA \udcff H200\n")
    first, second, third = open_nvml().read().devices
    assert first.health == "unreliable"
    assert [(each.pid, each.memory) for each in first.processes or ()] == [(12, None)]
    assert (second.health, second.utilization) == ("unreliable", None)
    assert third.health == "ok"
    assert third.name is not None
    assert (third.name[:7], third.name[-5:], "\udcff" in third.name) == ("NVIDIA ", " H200", False)


def test_sensors_that_cannot_be_are_left_out_and_named(driver, open_nvml):
    driver.update_device(A, temperature=4000)
    driver.update_device(B, clocks={"graphics": 0, "sm": 90_000, "memory": 1593, "video": 0})
    first, second, _ = open_nvml().read().devices
    assert (first.health, first.temperature, first.power) == ("unreliable", None, 25_000)
    assert first.doubts == ("a temperature that cannot be",)
    assert (second.health, second.sm_clock, second.memory_clock) == ("unreliable", None, 1593)


def test_memory_errors_are_counted_where_the_card_has_ecc(driver, open_nvml):
    driver.update_device(A, ecc_mode=1, ecc={"corrected": 7, "uncorrected": 2})
    first, second, _ = open_nvml().read().devices
    assert (first.ecc_errors, second.ecc_errors) == (2, None)


def test_critical_errors_are_heard_and_only_a_grave_one_makes_the_gpu_unreliable(driver, open_nvml):
    driver.update_device(A, xids=[62])
    source = open_nvml()
    assert source.read().devices[0].xids == (), "it was before anybody listened"
    driver.xid(A, 31)
    driver.xid(A, 45)
    driver.xid(B, 48)
    first, second, third = source.read().devices
    assert [xid.code for xid in first.xids] == [31, 45]
    assert (first.health, first.doubts) == ("ok", ()), "a program's own mistake"
    assert (second.health, [xid.code for xid in second.xids]) == ("unreliable", [48])
    assert "Xid 48" in second.doubts[0]
    assert "reset" in second.doubts[0]
    assert third.xids == ()
    assert [xid.code for xid in source.read().devices[0].xids] == [31, 45], "and stays told"


def test_card_without_events_is_read_all_the_same(driver, open_nvml):
    driver.fail("nvmlDeviceRegisterEvents", 3, A)
    source = open_nvml()
    source.read()
    driver.xid(B, 31)
    inventory = source.read()
    assert healths(inventory) == {A: "ok", B: "ok", C: "ok"}
    assert [xid.code for xid in inventory.devices[1].xids] == [31]


def test_process_that_stands_in_two_lists_counts_once(driver, open_nvml):
    kinds: list[Literal["graphics", "compute"]] = ["graphics", "compute"]
    driver.set_processes(A, [{"pid": 12, "memory": GIB, "kind": kind} for kind in kinds])
    (process,) = open_nvml().read().devices[0].processes or ()
    assert (process.pid, process.memory, process.kind) == (12, GIB, "compute")


@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_sick_gpu_is_left_out_and_the_others_are_read(driver, open_nvml, clock, fault):
    source = open_nvml(deadline=3.0 if fault == "hang" else 60.0)
    until(source, lambda inventory: inventory.trouble is None)
    pid = child_of(source)
    driver.fail("nvmlDeviceGetUtilizationRates", fault, A)
    inventory = until(source, lambda inventory: healths(inventory)[C] == "ok")
    assert healths(inventory) == {A: "unknown", B: "ok", C: "ok"}
    assert inventory.devices[0].memory_total == TOTAL
    assert "GPU 0" in (inventory.trouble or "")
    assert gone(pid)
    # Back again: a second child finds it well, and takes over.
    driver.heal()
    assert healths(source.read())[A] == "unknown", "tried again before its time"
    clock.now += 10
    inventory = until(source, lambda inventory: healths(inventory)[A] == "ok")
    assert (healths(inventory), inventory.trouble) == ({A: "ok", B: "ok", C: "ok"}, None)


def test_gpu_that_stays_sick_costs_the_others_nothing_when_it_is_tried(driver, open_nvml, clock):
    source = open_nvml(deadline=3.0)
    until(source, lambda inventory: inventory.trouble is None)
    driver.hang("nvmlDeviceGetUtilizationRates", A)
    until(source, lambda inventory: healths(inventory)[C] == "ok")
    pid, seen = child_of(source), []

    def tried(inventory: Inventory) -> bool:
        seen.append(healths(inventory))
        return source._current is not None and child_of(source) != pid

    clock.now += 10
    until(source, tried)
    seen.append(healths(source.read()))
    assert [health[B] for health in seen] == ["ok"] * len(seen)
    assert seen[-1][A] == "unknown"


def test_gpus_to_be_tried_again_are_read_after_the_others(driver):
    child = Child(COMMAND, dict(os.environ))
    try:
        order = []
        for request in (frames.Open(), frames.Ask(last=(0,))):
            child.send(request)
            while not isinstance(message := child.receive(FOREVER), frames.Opened | frames.Done):
                if isinstance(message, frames.Told):
                    order.append(message.index)
        assert order == [1, 2, 0]
    finally:
        child.end(wait=10.0)


def test_healthy_gpu_that_takes_the_place_of_a_sick_one_is_not_left_out(driver, open_nvml, clock):
    source = open_nvml(deadline=3.0)
    until(source, lambda inventory: inventory.trouble is None)
    driver.crash("nvmlDeviceGetUtilizationRates", B)
    assert healths(source.read()) == {A: "ok", B: "unknown", C: "ok"}
    driver.heal()
    driver.remove_device(A)  # C has now the number that B had
    os.kill(child_of(source), signal.SIGKILL)
    seen = []
    inventory = until(source, lambda each: seen.append(healths(each)) or each.trouble is None)
    assert healths(inventory) == {A: "lost", B: "ok", C: "ok"}
    assert "lost" not in {health[C] for health in seen}


def test_what_a_library_prints_does_not_disturb(driver, open_nvml):
    noisy = """
import os, pynvml
from genv_jupyter.devices import nvml_child
real = pynvml.nvmlInit
pynvml.nvmlInit = lambda: (os.write(1, b"a word from the library"), real())
nvml_child.main()
"""
    inventory = open_nvml(command=[sys.executable, "-c", noisy]).read()
    assert (inventory.trouble, len(inventory.devices)) == (None, 3)


def test_gpu_that_hangs_while_it_is_attached_is_left_out(driver, open_nvml):
    driver.hang("nvmlDeviceGetHandleByIndex", B)
    source = open_nvml(deadline=3.0, opening_deadline=2.0)
    inventory = until(source, lambda inventory: len(inventory.devices) == 2)
    assert healths(inventory) == {A: "ok", C: "ok"}
    assert "GPU 1 does not answer" in (inventory.trouble or "")


def test_driver_that_hangs_is_told_and_comes_back(driver, open_nvml, clock):
    source = open_nvml(deadline=3.0, opening_deadline=2.0)
    until(source, lambda inventory: inventory.trouble is None)
    driver.hang("nvmlInitWithFlags")
    os.kill(child_of(source), signal.SIGKILL)
    inventory = until(source, lambda inventory: "does not answer" in (inventory.trouble or ""))
    assert healths(inventory) == {A: "unknown", B: "unknown", C: "unknown"}
    assert all(gone(child.pid) for child in source._ending)
    driver.heal()
    assert "does not answer" in (source.read().trouble or ""), "tried again before its time"
    clock.now += LONGEST_BACK_OFF
    inventory = until(source, lambda inventory: inventory.trouble is None)
    assert healths(inventory) == {A: "ok", B: "ok", C: "ok"}


def test_killed_child_is_replaced_in_the_same_reading(driver, open_nvml):
    source = open_nvml()
    source.read()
    pid = child_of(source)
    os.kill(pid, signal.SIGKILL)
    inventory = source.read()
    assert (inventory.trouble, healths(inventory)) == (None, {A: "ok", B: "ok", C: "ok"})
    assert child_of(source) != pid


def test_child_that_ends_at_every_question_is_started_ever_more_rarely(driver, open_nvml, clock):
    driver.crash("nvmlDeviceGetCount")
    source = open_nvml()
    inventory = source.read()
    assert "crashed with SIGSEGV" in (inventory.trouble or "")
    assert source._not_before == 1
    driver.heal()
    assert source.read().trouble == inventory.trouble, "tried again before its time"
    clock.now += 1
    assert source.read().trouble is None


@pytest.mark.parametrize(
    ("code", "cause", "cure"),
    [
        (9, "kernel module is not loaded", "modprobe"),
        (18, "upgraded", "reboot"),
        (4, "may not open", "/dev/nvidia"),
        (6, "finds no GPU", "lspci"),
        (999, "Unknown Error", "nvidia-smi"),
    ],
)
def test_driver_that_cannot_be_opened_is_told_with_its_cure(
    driver, open_nvml, clock, code, cause, cure
):
    driver.fail("nvmlInitWithFlags", code)
    source = open_nvml()
    inventory = source.read()
    assert inventory.devices == ()
    assert cause in (inventory.trouble or "")
    assert cure in (inventory.trouble or "")
    driver.heal()
    assert source.read().trouble == inventory.trouble, "tried again before its time"
    clock.now += LONGEST_BACK_OFF
    inventory = source.read()
    assert (inventory.trouble, len(inventory.devices)) == (None, 3)


def test_host_without_gpus_says_so(driver, open_nvml):
    driver.update(devices=[])
    assert "finds no GPU" in (open_nvml().read().trouble or "")


def test_waits_grow_with_every_failure_and_start_anew_after_a_success(driver, open_nvml, clock):
    driver.update(driver_loaded=False)
    source = open_nvml()
    waits = []
    for _ in range(8):
        source.read()
        waits.append(source._not_before - clock.now)
        clock.now = source._not_before
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    driver.update(driver_loaded=True)
    assert source.read().trouble is None
    assert source._failures == 0


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["/nonexistent/python"], "cannot be started"),
        ([sys.executable, "-c", "raise SystemExit('no module named pynvml')"], "no module named"),
        ([sys.executable, "-c", "print('hello, world'*3, flush=True); input()"], "a frame of"),
        ([sys.executable, "-c", "import os; os.abort()"], "SIGABRT"),
    ],
)
def test_child_that_does_not_work_is_told(command, says):
    source = NvmlSource(deadline=60.0, command=command)
    try:
        inventory = source.read()
        assert inventory.devices == ()
        assert says in (inventory.trouble or "")
    finally:
        source.close()


def test_closing_ends_the_child_and_keeps_the_last_reading(driver, open_nvml):
    source = open_nvml()
    source.read()
    pid = child_of(source)
    source.close()
    assert gone(pid)
    inventory = source.read()
    assert healths(inventory) == {A: "unknown", B: "unknown", C: "unknown"}
    assert "ended" in (inventory.trouble or "")
    source.close()


def test_readings_from_many_threads_are_whole_and_share_one_child(driver, open_nvml):
    source = open_nvml()
    source.read()
    pid = child_of(source)
    seen: list[Inventory] = []

    def read() -> None:
        for _ in range(20):
            seen.append(source.read())  # noqa: PERF401 - the point is to read while others do

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 160
    assert {inventory.trouble for inventory in seen} == {None}
    assert {tuple(healths(inventory).values()) for inventory in seen} == {("ok",) * 3}
    assert child_of(source) == pid


PARENT = """
import os, signal, sys
from genv_jupyter.devices.nvml import NvmlSource
source = NvmlSource(deadline=float(sys.argv[1]), opening_deadline=60.0)
source.read()
print((source._current or source._opening).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("hanging", [False, True])
def test_child_ends_when_its_parent_is_killed(driver, hanging):
    if hanging:
        driver.hang("nvmlInitWithFlags")
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, "1" if hanging else "60"], capture_output=True, timeout=60
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    assert gone(int(parent.stdout))


def test_nvidias_own_library_without_a_driver_is_told(monkeypatch):
    root = unpacked("libnvidia-ml1")
    (library,) = root.rglob("libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("there is a real driver here")
    source = NvmlSource(deadline=60.0)
    try:
        inventory = source.read()
        assert inventory.devices == ()
        assert "kernel module is not loaded" in (inventory.trouble or "")
    finally:
        source.close()


def test_host_without_the_library_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")  # found first, and not loadable
    source = NvmlSource(deadline=60.0)
    try:
        assert "libnvidia-ml.so.1" in (source.read().trouble or "")
    finally:
        source.close()
