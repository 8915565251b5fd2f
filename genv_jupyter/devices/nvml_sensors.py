"""What every reading tells of a GPU besides memory and processes: warmth, power, clocks, errors.

Called in the child process. Each is optional on its own; what a card has said it cannot tell is not
asked again, and what hardly changes is asked every ten seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from genv_jupyter import xids
from genv_jupyter.devices.readings import Doubt, clean_uuid
from genv_jupyter.devices.source import Xid

SELDOM = 10.0
"""Seconds between two readings of what hardly changes."""

CURABLE = 3600.0
"""Seconds after which an error that asked for a reset is no reason to doubt a GPU any more: nobody
tells that the reset has been."""

_MOST_XIDS = 8
_MOST_EVENTS = 64
_NEVER = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_WHOLE = 0xFFFFFFFF
"""Stands for the instance of an error that is about the whole GPU."""


class _Sensor(NamedTuple):
    """A call that gives one number: its highest value, and what it is called if it is beyond."""

    field: str
    function: str
    highest: int
    what: str
    arguments: tuple[Any, ...] = ()


_OFTEN = (
    _Sensor(
        *("temperature", "nvmlDeviceGetTemperature", 200, "a temperature"),
        (pynvml.NVML_TEMPERATURE_GPU,),
    ),
    _Sensor("power", "nvmlDeviceGetPowerUsage", 5_000_000, "a power"),
    _Sensor(
        *("sm_clock", "nvmlDeviceGetClockInfo", 10_000, "a clock"),
        (pynvml.NVML_CLOCK_SM,),
    ),
    _Sensor(
        *("memory_clock", "nvmlDeviceGetClockInfo", 50_000, "a clock"),
        (pynvml.NVML_CLOCK_MEM,),
    ),
)
_RARELY = (
    _Sensor("power_limit", "nvmlDeviceGetEnforcedPowerLimit", 5_000_000, "a power limit"),
    _Sensor(
        *("ecc_errors", "nvmlDeviceGetTotalEccErrors", 2**50, "a number of memory errors"),
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
    ),
)


class Sensors:
    """Reads the sensors of devices.

    Parameters
    ----------
    check
        Called with every error; raises where it is about the whole GPU.
    clock
        Seconds that only grow.
    """

    def __init__(
        self,
        check: Callable[[pynvml.NVMLError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check = check
        self._clock = clock
        self._never: set[tuple[str, str]] = set()
        self._kept: dict[str, tuple[float, dict[str, int]]] = {}

    def read(self, handle: Any, uuid: str, doubt: Doubt) -> dict[str, Any]:
        """Return what this device tells, by field of ``DeviceReading``."""
        now = self._clock()
        at, seldom = self._kept.get(uuid, (float("-inf"), {}))
        if now - at >= SELDOM:
            seldom = self._ask(_RARELY, handle, uuid, doubt)
            self._kept[uuid] = now, seldom
        return {**seldom, **self._ask(_OFTEN, handle, uuid, doubt)}

    def _ask(
        self, sensors: tuple[_Sensor, ...], handle: Any, uuid: str, doubt: Doubt
    ) -> dict[str, int]:
        found: dict[str, int] = {}
        for sensor in sensors:
            key = uuid, sensor.field
            if key in self._never:
                continue
            try:
                value = getattr(pynvml, sensor.function)(handle, *sensor.arguments)
            except pynvml.NVMLError as error:
                self._check(error)
                if error.value in _NEVER:
                    self._never.add(key)
                continue
            clean = doubt.within(value, sensor.highest, sensor.what)
            if clean is not None:
                found[sensor.field] = clean
        return found


class Errors:
    """Keeps the last critical errors (Xid) of each GPU.

    Parameters
    ----------
    clock
        Seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._set: Any = None
        self._found: dict[str, deque[tuple[int, Xid]]] = {}

    def watch(self, handle: Any) -> None:
        """Have the driver note the errors of a GPU; some cards cannot, and some containers."""
        try:
            if self._set is None:
                self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except pynvml.NVMLError:
            return  # then there are no errors to be told of it: each reading is optional

    def poll(self) -> None:
        """Take in what was noted since; without waiting."""
        if self._set is None:
            return
        for _ in range(_MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
                uuid = clean_uuid(pynvml.nvmlDeviceGetUUID(event.device))
            except pynvml.NVMLError:
                return  # "timeout": there is no more; a GPU that is lost says so elsewhere
            if uuid is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                kept = self._found.setdefault(uuid, deque(maxlen=_MOST_XIDS))
                kept.append((event.gpuInstanceId, Xid(self._clock(), int(event.eventData))))

    def of(self, gpu: str, instance: tuple[int, int] | None) -> tuple[Xid, ...]:
        """Return the errors of a GPU, or those that concern one of its instances."""
        return tuple(
            xid
            for where, xid in self._found.get(gpu, ())
            if instance is None or where in (instance[0], _WHOLE)
        )


def graded(doubt: Doubt, errors: tuple[Xid, ...], now: float | None = None) -> dict[str, Any]:
    """Return the health of a device that was read, and what is wrong with it."""
    now = time.time() if now is None else now
    for error in errors:
        if xids.meaning(error.code).reset and now - error.at < CURABLE:
            doubt.say(f"{xids.sentence(error.code)}, which a reset of the GPU or a reboot cures")
    return {"health": "unreliable" if doubt.raised else "ok", "doubts": tuple(doubt.words)}
