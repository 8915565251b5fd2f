"""The pool against the (fake) CUDA driver's own reading of CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from genv_jupyter.devices.nvml import NvmlSource
from genv_jupyter.devices.pool import read_pool
from genv_jupyter.devices.source import DeviceReading
from tests.fakedriver import DeviceSpec, FakeDriver, device, instance, instance_uuid

A = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
AB = "GPU-aabbbbbb-0000-4000-8000-000000000001"
C = "GPU-cccccccc-0000-4000-8000-000000000002"

# One process for each value: CUDA reads the variable once.
ENUMERATE = """
import ctypes, json, os, sys, uuid
answers = []
for value in json.load(sys.stdin):
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if value is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = value
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        cuda = ctypes.CDLL("libcuda.so.1")
        count, raw, found = ctypes.c_int(), (ctypes.c_ubyte * 16)(), []
        if cuda.cuInit(0) == 0:
            assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
        for ordinal in range(count.value):
            assert cuda.cuDeviceGetUuid_v2(raw, ordinal) == 0
            found.append(str(uuid.UUID(bytes=bytes(raw))))
        os.write(theirs, json.dumps(found).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        answers.append(json.load(pipe))
    assert os.waitpid(child, 0)[1] == 0
print(json.dumps(answers))
"""

VALUES = [
    None,
    *("0", "2,0", "0,1,2", " 0 , 2 ", "+1", "1gpu2,2ampere", "0x1", "007", "00", "1.9", "0\n"),
    *("-1", "0,-1,2", "0,3,1", "3", "99999999999999999999999999", "0,,1", "0,", ",0", "-0"),
    *("all", "gpu0", "0;1", "0 1", "", "   ", "NoDevFiles", "\u0661", "0,0", "2,1,2", "0,00"),
    *(f"{A},{A}", f"{A},0", "GPU-c,GPU-cc", "0,-1,0", C, f"{C},{A}", f"\t {C}", f"\n{C}"),
    *("GPU-c", "GPU-aaa,GPU-aab", "GPU-aa", "GPU-", "GPU-c,GPU-a,GPU-aab", "GPU-CCCCCCCC"),
    *(f"{C}x", f"{C} ,0", "GPU-eeee,0", "1,GPU-c", "MIG-1", "MIG-", "gpu-c", "GPU", "0,GPU-c,2"),
]


def host(directory: Path, specs: Sequence[DeviceSpec], values: Sequence[str | None]):
    """Return what NVML lists on such a host, and what CUDA sees with each value."""
    with FakeDriver(directory, {"devices": list(specs)}) as driver:
        environ = {**os.environ, **driver.environ}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in driver.environ.items():
                patch.setenv(name, value)
            source = NvmlSource(deadline=60.0)
            devices = source.read().devices
            source.close()
        done = subprocess.run(
            [sys.executable, "-c", ENUMERATE],
            input=json.dumps(values),
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return devices, json.loads(done.stdout)


def bare(uuids: Sequence[str]) -> list[str]:
    return [uuid.partition("-")[2] for uuid in uuids]


def check(devices: Sequence[DeviceReading], value: str | None, seen: list[str]) -> None:
    assert bare(read_pool(value, devices).uuids) == seen, f"CUDA_VISIBLE_DEVICES={value!r}"


def test_pool_is_what_cuda_sees(tmp_path):
    specs = [device(index, uuid=uuid) for index, uuid in enumerate((A, AB, C))]
    devices, seen = host(tmp_path, specs, VALUES)
    for value, found in zip(VALUES, seen, strict=True):
        check(devices, value, found)
    assert seen[0] == bare([A, AB, C])
    assert len({tuple(found) for found in seen}) > 8, "the values hardly differ"


def test_pool_begins_with_the_mig_instance_that_cuda_sees(tmp_path):
    specs = [
        device(0, uuid=A),
        device(1, uuid=AB, mig_capable=True, mig=[instance(1, 0), instance(1, 1)]),
        device(2, uuid=C),
    ]
    first, second = instance_uuid(1, 0), instance_uuid(1, 1)
    values = [
        *(first, second, f"{second},{first}", first[:8], f"{second}x", "1", AB, "2", "0,2", "2,-1"),
        *(f"MIG-{AB}/7/0", f"MIG-{AB}/8/0", f"MIG-{AB}/9/0", "1,1", f"{AB},1", "MIG-"),
    ]
    devices, seen = host(tmp_path, specs, values)
    assert any(len(found) == 1 for found in seen)
    for value, found in zip(values, seen, strict=True):
        pool = read_pool(value, devices).uuids
        if any(uuid.startswith("MIG-") for uuid in pool):  # of which a process sees one
            pool = pool[:1]
        assert bare(pool) == found, f"CUDA_VISIBLE_DEVICES={value!r}"
