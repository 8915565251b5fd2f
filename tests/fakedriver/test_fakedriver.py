"""Memory, processes and trouble, as real pynvml and cuda-bindings see them."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakedriver import (
    GIB,
    MIB,
    Context,
    device,
    instance_uuid,
    mig_scenario,
    uuid,
)
from tests.fakedriver.fixtures import MakeDriver
from tests.fakedriver.remote import Remote, bare

OUT_OF_MEMORY, UNAVAILABLE, NO_DEVICE, UNKNOWN = 2, 46, 100, 999
UNINITIALIZED, NOT_SUPPORTED, NOT_FOUND, NOT_LOADED, LOST = 1, 3, 6, 9, 15
NO_INSTANCE = 0xFFFFFFFF
CONTEXT = 300 * MIB


def wait_until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "It does not happen."
        time.sleep(0.002)


# ---- memory and processes ----


def test_context_and_allocations_are_seen_by_another_process(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    first = driver.uuids[0]
    with Remote(driver, CUDA_VISIBLE_DEVICES=first) as user, Remote(driver) as watcher:
        watcher("gpus = started()")
        user("cuda.cuInit(0)")
        assert watcher("processes(gpus[0])") == []
        user("handle = context()[1]")
        assert watcher("processes(gpus[0])") == [[user.pid, CONTEXT, NO_INSTANCE]]
        user("memory = cuda.cuMemAlloc(2**30)[1]")
        assert watcher("processes(gpus[0])") == [[user.pid, CONTEXT + GIB, NO_INSTANCE]]
        assert driver.contexts() == [Context(user.pid, first, 1, CONTEXT + GIB)]
        assert watcher("used(gpus[0]), used(gpus[1])") == [CONTEXT + GIB, 0]
        free, total = user("cuda.cuMemGetInfo()[1:]")
        assert (free, total) == (23 * GIB + 512 * MIB - GIB - CONTEXT, 23 * GIB + 512 * MIB)
        assert user("cuda.cuMemFree(memory)") == [0]
        assert watcher("used(gpus[0])") == CONTEXT
        user("cuda.cuMemAlloc(2**30)")
        assert user("cuda.cuCtxDestroy(handle)") == [0]
        assert watcher("processes(gpus[0])") == []
        assert watcher("used(gpus[0])") == 0


def test_primary_context_lives_while_it_is_retained(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as process:
        process("cuda.cuInit(0); gpu = cuda.cuDeviceGet(1)[1]")
        assert process("cuda.cuDevicePrimaryCtxGetState(gpu)") == [0, 0, 0]
        process("cuda.cuDevicePrimaryCtxRetain(gpu); cuda.cuDevicePrimaryCtxRetain(gpu)")
        assert process("cuda.cuDevicePrimaryCtxGetState(gpu)") == [0, 0, 1]
        assert driver.contexts() == [Context(process.pid, uuid(1), 1, CONTEXT)]
        assert process("cuda.cuDevicePrimaryCtxRelease(gpu)") == [0]
        assert len(driver.contexts()) == 1
        process("cuda.cuDevicePrimaryCtxRelease(gpu)")
        assert driver.contexts() == []


def test_more_than_is_free_is_out_of_memory(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    driver.set_external(uuid(0), 20 * GIB)
    with Remote(driver) as process:
        process("cuda.cuInit(0); context()")
        assert process("allocate(4 * 2**30)") == OUT_OF_MEMORY
        assert process("allocate(3 * 2**30)") == 0
        assert process("allocate(2**30)") == OUT_OF_MEMORY
        assert process("context()[0]") == OUT_OF_MEMORY
        driver.set_external(uuid(0), 0)
        assert process("allocate(10 * 2**30)") == 0


def test_racing_processes_never_get_more_than_there_is(fake_driver: MakeDriver) -> None:
    room = 250
    total = 2 * CONTEXT + room * MIB
    devices = [device(0, memory_total=total, memory_reserved=0)]
    driver = fake_driver({"devices": devices, "context_bytes": CONTEXT})
    with Remote(driver) as first, Remote(driver) as second:
        for process in (first, second):
            process("cuda.cuInit(0); context()")
        for process in (first, second):
            process.begin("sum(allocate(2**20) == 0 for _ in range(200))")
        assert first.answer() + second.answer() == room
        assert sum(context.memory for context in driver.contexts()) == total


def test_table_is_changed_by_one_process_at_a_time(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as process:
        process("cuda.cuInit(0); context()")
        with Path(driver.environ["FAKEDRIVER_STATE"]).open("rb") as table:
            fcntl.flock(table, fcntl.LOCK_EX)
            process.begin("allocate(2**20)")
            assert not process.has_answered(within=0.3)
            assert driver.contexts()[0].memory == CONTEXT
        assert process.answer() == 0
        assert driver.contexts()[0].memory == CONTEXT + MIB


def test_killed_process_frees_everything_even_in_the_middle(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as watcher:
        watcher("gpus = started()")
        for _ in range(5):
            with Remote(driver) as victim:
                victim("cuda.cuInit(0); context()")
                victim.begin("[cuda.cuMemFree(cuda.cuMemAlloc(2**20)[1]) for _ in range(10**9)]")
                wait_until(lambda: driver.contexts()[0].memory > CONTEXT)  # it has begun
                victim.signal(signal.SIGKILL)
                victim.wait()
            assert watcher("processes(gpus[0]), used(gpus[0])") == [[], 0]
    assert driver.contexts() == []


def test_zombie_holds_nothing(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as watcher, Remote(driver) as victim:
        victim("cuda.cuInit(0); context()")
        victim.signal(signal.SIGKILL)
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)  # ended, and still to be reaped
        watcher("gpus = started()")
        assert watcher("processes(gpus[0]), used(gpus[0])") == [[], 0]
        assert driver.contexts() == []


def test_what_was_held_before_an_exec_is_gone(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as process:
        process("cuda.cuInit(0); context()")
        process.begin("os.execve(sys.executable, sys.orig_argv, {**os.environ, 'AFTER': 'exec'})")
        environ = Path(f"/proc/{process.pid}/environ")
        wait_until(lambda: b"AFTER=exec" in environ.read_bytes())
        process("cuda.cuInit(0)")
        assert driver.contexts() == []


@pytest.mark.parametrize(("mode", "second"), [(0, 0), (2, UNAVAILABLE), (3, UNAVAILABLE)])
def test_compute_mode_decides_who_may_open_a_context(
    fake_driver: MakeDriver, mode: int, second: int
) -> None:
    driver = fake_driver({"devices": [device(0, compute_mode=mode)]})
    with Remote(driver) as one, Remote(driver) as other:
        one("cuda.cuInit(0)")
        other("cuda.cuInit(0)")
        assert one("context()[0]") == (UNAVAILABLE if mode == 2 else 0)
        assert other("context()[0]") == second


def test_processes_of_the_scenario_are_listed_and_counted(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    driver.set_processes(
        uuid(0),
        [
            {"pid": 4001, "memory": 2 * GIB},
            {"pid": 4002, "memory": None},
            {"pid": 4003, "memory": 64 * MIB, "kind": "graphics"},
            {"pid": 4004, "memory": GIB, "kind": "mps"},
        ],
    )
    with Remote(driver) as process:
        process("gpu = started()[0]")
        assert process("processes(gpu)") == [
            [4001, 2 * GIB, NO_INSTANCE],
            [4002, None, NO_INSTANCE],
        ]
        graphics = process("processes(gpu, nvml.nvmlDeviceGetGraphicsRunningProcesses)")
        assert graphics == [[4003, 64 * MIB, NO_INSTANCE]]
        served = process("processes(gpu, nvml.nvmlDeviceGetMPSComputeRunningProcesses)")
        assert served == [[4004, GIB, NO_INSTANCE]]
        assert process("used(gpu)") == 3 * GIB + 64 * MIB
        driver.update(list_processes=False)
        assert process("processes(gpu), used(gpu)") == [[], 3 * GIB + 64 * MIB]


def test_pids_of_another_namespace_are_shifted(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    driver.update(pid_shift=1_000_000)
    with Remote(driver) as process:
        process("cuda.cuInit(0); context(); gpu = started()[0]")
        assert process("processes(gpu)[0][0]") == process.pid + 1_000_000


# ---- trouble ----


def test_driver_that_is_not_loaded(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    driver.update(driver_loaded=False)
    with Remote(driver) as process:
        assert process("nvml.nvmlInit()") == {"nvml": NOT_LOADED}
        assert process("cuda.cuInit(0)") == [NO_DEVICE]
        driver.update(driver_loaded=True)
        assert process("len(started())") == 2


def test_lost_device_is_counted_and_fails_alone(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as process:
        process("gpus = started(); cuda.cuInit(0); context(0)")
        driver.lose(uuid(0))
        for call in ("nvml.nvmlDeviceGetName(gpus[0])", "used(gpus[0])", "processes(gpus[0])"):
            assert process(call) == {"nvml": LOST}
        assert process("nvml.nvmlDeviceGetHandleByIndex(0) and None") == {"nvml": LOST}
        assert process("nvml.nvmlDeviceGetCount()") == 2
        assert process("nvml.nvmlDeviceGetUUID(gpus[1])") == uuid(1)
        assert process("allocate(2**20)") == UNKNOWN
        with Remote(driver) as later:
            assert later("visible()") == [0, bare(uuid(1))]
        driver.restore(uuid(0))
        assert process("nvml.nvmlDeviceGetUUID(gpus[0])") == uuid(0)
        assert process("allocate(2**20)") == 0


def test_fault_of_a_function_on_one_device_or_all(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as process:
        process("gpus = started()")
        rates = "nvml.nvmlDeviceGetUtilizationRates(gpus[{}]).gpu"
        driver.update_device(uuid(0), utilization={"gpu": 87, "memory": 12})
        assert process(rates.format(0)) == 87
        driver.fail("nvmlDeviceGetUtilizationRates", UNKNOWN, uuid(0))
        assert process(rates.format(0)) == {"nvml": UNKNOWN}
        assert process(rates.format(1)) == 0
        driver.fail("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)  # stands for _v2 as well
        assert process("used(gpus[1])") == {"nvml": NOT_SUPPORTED}
        driver.heal()
        assert process(rates.format(0)) == 87
        assert process("used(gpus[1])") == 0
        driver.fail("cuInit", UNKNOWN)
        assert process("cuda.cuInit(0)") == [UNKNOWN]


def test_reading_that_a_card_cannot_tell(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    driver.update_device(uuid(0), utilization=None, power=None)
    with Remote(driver) as process:
        process("gpus = started()")
        assert process("nvml.nvmlDeviceGetUtilizationRates(gpus[0])") == {"nvml": NOT_SUPPORTED}
        assert process("nvml.nvmlDeviceGetPowerUsage(gpus[0])") == {"nvml": NOT_SUPPORTED}
        assert process("nvml.nvmlDeviceGetPowerUsage(gpus[1])") == 25_000
        assert process("nvml.nvmlDeviceGetTemperature(gpus[0], nvml.NVML_TEMPERATURE_GPU)") == 35


def test_hanging_call_yields_to_sigkill_only(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    driver.hang("nvmlDeviceGetName", uuid(1))
    with Remote(driver) as process, Remote(driver) as other:
        process("gpus = started()")
        assert process("nvml.nvmlDeviceGetName(gpus[0])") == "NVIDIA Fake 24GiB"
        process.begin("nvml.nvmlDeviceGetName(gpus[1])")
        wait_until(lambda: blocks_sigterm(process.pid))  # it is in the call
        process.signal(signal.SIGTERM)
        driver.heal()  # others go on; who is stuck stays so
        assert other("nvml.nvmlDeviceGetName(started()[1])") == "NVIDIA Fake 24GiB"
        assert blocks_sigterm(process.pid)
        process.signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def blocks_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_crashing_call_ends_its_process(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    driver.crash("nvmlDeviceGetUUID")
    with Remote(driver) as process:
        process("gpus = started()")
        process.begin("nvml.nvmlDeviceGetUUID(gpus[0])")
        assert process.wait() == -signal.SIGSEGV


def test_device_plugged_in_shows_after_the_next_init(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as process:
        process("gpus = started()")
        driver.add_device(device(2))
        process("nvml.nvmlInit()")  # the second of two: nothing is enumerated
        assert process("nvml.nvmlDeviceGetCount()") == 2
        process("nvml.nvmlShutdown(); nvml.nvmlShutdown()")
        assert process("nvml.nvmlDeviceGetCount()") == {"nvml": UNINITIALIZED}
        process("gpus = started()")
        assert process("[nvml.nvmlDeviceGetUUID(gpu) for gpu in gpus]") == [
            uuid(0),
            uuid(1),
            uuid(2),
        ]
        driver.remove_device(uuid(1))
        assert process("nvml.nvmlDeviceGetUUID(gpus[1])") == {"nvml": LOST}
        assert process("nvml.nvmlDeviceGetUUID(gpus[2])") == uuid(2)


def test_scenario_is_found_without_our_variables(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver, FAKEDRIVER_SCENARIO="", FAKEDRIVER_STATE="") as process:
        assert process("visible()") == [0, bare(uuid(0), uuid(1))]
        process("context()")
        assert [context.pid for context in driver.contexts()] == [process.pid]


# ---- MIG ----


def test_instances_as_nvml_tells_them(fake_driver: MakeDriver) -> None:
    driver = fake_driver(mig_scenario())
    with Remote(driver, CUDA_VISIBLE_DEVICES=instance_uuid(1, 1)) as process:
        process("whole, parent = started()")
        process("part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 1)")
        assert process("nvml.nvmlDeviceGetMigMode(parent)") == [1, 1]
        assert process("nvml.nvmlDeviceGetMigMode(whole)") == {"nvml": NOT_SUPPORTED}
        assert process("nvml.nvmlDeviceGetMaxMigDeviceCount(parent)") == 7
        absent = "nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 2)"
        assert process(absent) == {"nvml": NOT_FOUND}
        assert process("nvml.nvmlDeviceGetUUID(part)") == instance_uuid(1, 1)
        assert process("nvml.nvmlDeviceGetMemoryInfo(part).total") == 10 * GIB
        assert process("nvml.nvmlDeviceIsMigDeviceHandle(part).value") == 1
        assert process("nvml.nvmlDeviceGetGpuInstanceId(part)") == 8
        assert process("nvml.nvmlDeviceGetComputeInstanceId(part)") == 0
        by_uuid = f"nvml.nvmlDeviceGetHandleByUUID({instance_uuid(1, 1)!r})"
        assert process(f"nvml.nvmlDeviceGetUUID({by_uuid})") == instance_uuid(1, 1)
        up = "nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)"
        assert process(f"nvml.nvmlDeviceGetUUID({up})") == uuid(1)
        for handle in ("part", "parent"):
            rates = f"nvml.nvmlDeviceGetUtilizationRates({handle})"
            assert process(rates) == {"nvml": NOT_SUPPORTED}
        process("cuda.cuInit(0); context()")
        assert process("allocate(10 * 2**30)") == OUT_OF_MEMORY
        assert process("allocate(9 * 2**30)") == 0
        held = CONTEXT + 9 * GIB
        assert process("processes(part)") == [[process.pid, held, 8]]
        assert process("processes(parent)") == [[process.pid, held, 8]]
        assert process("used(part), used(parent), used(whole)") == [held, held, 0]


# ---- the helper ----


def test_unknown_key_is_refused(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with pytest.raises(TypeError, match="no memory"):
        device(0, memory=1)
    with pytest.raises(TypeError, match="no devies"):
        driver.update(devies=[])
    with pytest.raises(KeyError, match="GPU-none"):
        driver.lose("GPU-none")


def test_a_cap_of_mps_counts_for_each_process_where_a_daemon_listens(
    fake_driver: MakeDriver, tmp_path: Path
) -> None:
    driver = fake_driver()
    with tempfile.TemporaryDirectory(prefix="gj") as pipe:
        mps = {
            "CUDA_MPS_PIPE_DIRECTORY": pipe,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        }
        begin = "cuda.cuInit(0), context()"
        units = "cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute(16), 0)[1]"
        with Remote(driver, **mps) as alone:
            alone(begin)
            assert alone("cuda.cuMemGetInfo()[1]") > 20 * GIB, "without a word it has no cap"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
            daemon.bind(f"{pipe}/control")
            daemon.listen(8)
            with Remote(driver, **mps) as one, Remote(driver, **mps) as other:
                for process in (one, other):
                    process(begin)
                    free, total = process("cuda.cuMemGetInfo()[1:]")
                    assert free == 2 * GIB - CONTEXT and total > 20 * GIB
                    assert process(units) == 32
                    assert process("allocate(2**30)") == 0
                    assert process("allocate(2**30)") == 2, "its context counts"


def test_calls_of_all_processes_are_counted(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    assert driver.nvml_calls == 0
    with Remote(driver) as one, Remote(driver) as other:
        one("gpus = started()")
        other("gpus = started()")
        before = driver.nvml_calls
        assert before > 0
        one("used(gpus[0])")
        other("used(gpus[1])")
        assert driver.nvml_calls == before + 2
