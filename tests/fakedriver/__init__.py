"""A driver without a GPU: a fake ``libcuda.so.1`` and ``libnvidia-ml.so.1``, told what to be.

Real ``pynvml`` and NVIDIA's real ``cuda-bindings`` run on top, in any process whose environment
has ``FakeDriver.environ``::

    with FakeDriver() as driver:
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **driver.environ})
        driver.set_external(driver.uuids[0], 5 * GIB)   # seen by running processes at once

What is like a real driver: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read at the first
``cuInit``; calls before it, and in a fork after it, answer "not initialised"; contexts and
allocations take memory that other processes miss, appear in NVML's process list, and go with
their process, however it ends; NVML enumerates devices once per initialisation.
What is not: nothing computes, there are no memory copies, kernels, streams or MPS clients.
"""

from tests.fakedriver.building import CannotBuild, build
from tests.fakedriver.driver import Context, FakeDriver
from tests.fakedriver.scenario import (
    GIB,
    MIB,
    DeviceSpec,
    Fault,
    InstanceSpec,
    ProcessSpec,
    Scenario,
    default_scenario,
    device,
    instance,
    instance_uuid,
    mig_scenario,
    uuid,
)

__all__ = [
    "GIB",
    "MIB",
    "CannotBuild",
    "Context",
    "DeviceSpec",
    "FakeDriver",
    "Fault",
    "InstanceSpec",
    "ProcessSpec",
    "Scenario",
    "build",
    "default_scenario",
    "device",
    "instance",
    "instance_uuid",
    "mig_scenario",
    "uuid",
]
