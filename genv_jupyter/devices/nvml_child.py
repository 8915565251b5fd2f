"""The process that calls the NVIDIA driver: ``python -m genv_jupyter.devices.nvml_child``.

It may hang or crash at any call, so it lives apart (see ``nvml.py``), says which GPU it is about to
touch, and ends as soon as its parent is gone.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pynvml

from genv_jupyter.devices import frames, trouble
from genv_jupyter.devices.frames import Fault
from genv_jupyter.devices.nvml_details import DetailsReader
from genv_jupyter.devices.nvml_sensors import Errors, Sensors, graded
from genv_jupyter.devices.readings import Doubt, clean_memory, clean_text, clean_uuid, merge
from genv_jupyter.devices.source import DeviceReading, ProcessKind, ProcessReading

T = TypeVar("T")

_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND)
_SICK = (*_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_COMPUTE_MODES = dict(enumerate(("default", "exclusive_thread", "prohibited", "exclusive_process")))
_NUMBERS = {name: number for number, name in _COMPUTE_MODES.items()}
_PROCESS_LISTS: tuple[tuple[ProcessKind, str], ...] = (
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
_LOAD = "a utilisation"
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC


class _Sick(Exception):
    """The driver can tell nothing more about this GPU: it is lost, or has to be reset."""

    def __init__(self, why: str, code: int = pynvml.NVML_ERROR_UNKNOWN) -> None:
        super().__init__(why)
        self.fault: Fault = "lost" if code in _LOST else "unknown"


class Driver:
    """NVML, with every call optional on its own.

    Parameters
    ----------
    tell
        Sends messages to the parent.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._count = 0
        self._handles: dict[int, Any] = {}
        self._faults: dict[int, frames.Told] = {}
        self._fixed: dict[str, dict[str, Any]] = {}
        self._had_memory: set[str] = set()
        self._names: dict[int, str | None] = {}
        self._names_are_ours = _in_initial_pid_namespace()
        self._details = DetailsReader(partial(_optional, _text))
        self._sensors = Sensors(_sick_from)
        self._errors = Errors()
        self._details_wanted = False

    def open(self, skip: tuple[int, ...]) -> None:
        """Initialise NVML and attach every GPU, which may take seconds each."""
        pynvml.nvmlInit()
        self._count = pynvml.nvmlDeviceGetCount()
        if not self._count:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        for index in range(self._count):
            if index not in skip:
                self._tell(frames.Touching(index))
                self._attach(index)
                if index in self._handles:
                    self._errors.watch(self._handles[index][0])
        version = clean_text(_optional(pynvml.nvmlSystemGetDriverVersion))
        cuda = _optional(pynvml.nvmlSystemGetCudaDriverVersion)
        self._tell(frames.Opened(version, self._count, cuda))

    def read(self, last: tuple[int, ...], details: bool = False) -> None:
        """Tell about every attached GPU, and on demand what is rarely asked."""
        self._details_wanted = details
        self._errors.poll()
        indices = sorted(range(self._count), key=lambda index: (index in last, index))
        told: tuple[frames.Told, ...] = ()
        seen: dict[int, str | None] = {}
        for index in indices:
            if index in self._faults:
                told += (self._faults[index],)
            elif index in self._handles:
                # In one write with what was found before: half the wake-ups of the parent.
                self._tell(*told, frames.Touching(index))
                told = (self._told(index, seen),)
        self._names = seen
        self._tell(*told, frames.Done())

    def set_mode(self, asked: frames.SetMode) -> None:
        """Set a compute mode, unless somebody has set another one than is expected."""
        found = None
        for index, (handle, uuid) in self._handles.items():
            if uuid != asked.uuid:
                continue
            self._tell(frames.Touching(index))
            try:
                found = _COMPUTE_MODES.get(pynvml.nvmlDeviceGetComputeMode(handle), "unknown")
                if found == asked.expected != asked.mode:
                    pynvml.nvmlDeviceSetComputeMode(handle, _NUMBERS[asked.mode])
            except pynvml.NVMLError as error:
                self._tell(frames.ModeTold(found, _words(error)))
            else:
                self._tell(frames.ModeTold(found))
            return
        self._tell(frames.ModeTold(None, "the driver does not give access to it at present"))

    def _attach(self, index: int) -> None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = clean_uuid(_text(pynvml.nvmlDeviceGetUUID, handle))
        except pynvml.NVMLError as error:
            sick = _Sick(_words(error), error.value)
            self._faults[index] = frames.Told(index, None, fault=sick.fault, why=str(sick))
            return
        if uuid is None:
            why = "its UUID is unreadable"
            self._faults[index] = frames.Told(index, None, fault="unknown", why=why)
            return
        self._handles[index] = (handle, uuid)

    def _told(self, index: int, seen: dict[int, str | None]) -> frames.Told:
        handle, uuid = self._handles[index]
        try:
            mode = _optional(pynvml.nvmlDeviceGetMigMode, handle)
            if mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
                return frames.Told(index, uuid, tuple(self._instances(index, handle, uuid, seen)))
            device = self._device(handle, uuid, seen, index=index)
            return frames.Told(index, uuid, (device,))
        except _Sick as sick:
            return frames.Told(index, uuid, fault=sick.fault, why=str(sick))

    def _instances(
        self, index: int, parent: Any, parent_uuid: str, seen: dict[int, str | None]
    ) -> Iterator[DeviceReading]:
        for slot in range(_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
            # Layouts have holes, and a container may be allowed some instances only.
            handle = _optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, slot)
            if handle is None:
                continue
            uuid = clean_uuid(_optional(_text, pynvml.nvmlDeviceGetUUID, handle))
            if uuid is None:
                continue
            ids = (
                _optional(pynvml.nvmlDeviceGetGpuInstanceId, handle),
                _optional(pynvml.nvmlDeviceGetComputeInstanceId, handle),
            )
            yield self._device(
                handle,
                uuid,
                seen,
                kind="mig",
                parent=parent_uuid,
                parent_index=index,
                instance=None if None in ids else ids,
            )

    def _device(
        self, handle: Any, uuid: str, seen: dict[int, str | None], **place: Any
    ) -> DeviceReading:
        doubt = Doubt()
        memory = clean_memory(_memory(handle), doubt)
        if memory.total is not None:
            self._had_memory.add(uuid)
        elif uuid in self._had_memory:
            raise _Sick("its memory cannot be read any more")
        load = _optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
        processes = self._processes(handle, memory.total, doubt, seen)
        mode = _optional(pynvml.nvmlDeviceGetComputeMode, handle)
        xids = self._errors.of(place.get("parent", uuid), place.get("instance"))
        sensors = self._sensors.read(handle, uuid, doubt)
        return DeviceReading(
            uuid=uuid,
            memory_total=memory.total,
            memory_reserved=memory.reserved,
            memory_free=memory.free,
            utilization=doubt.within(load.gpu, 100, _LOAD) if load else None,
            memory_utilization=doubt.within(load.memory, 100, _LOAD) if load else None,
            processes=processes,
            compute_mode=None if mode is None else _COMPUTE_MODES.get(mode),
            xids=xids,
            **graded(doubt, xids),
            **sensors,
            details=self._details.read(handle, uuid) if self._details_wanted else None,
            **self._never_changing(handle, uuid),
            **place,
        )

    def _never_changing(self, handle: Any, uuid: str) -> dict[str, Any]:
        fixed = self._fixed.get(uuid)
        if fixed is None:
            capability = _optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
            fixed = self._fixed[uuid] = {
                "name": clean_text(_optional(_text, pynvml.nvmlDeviceGetName, handle)),
                "capability": tuple(capability) if capability else None,
            }
        return fixed

    def _processes(
        self, handle: Any, total: int | None, doubt: Doubt, seen: dict[int, str | None]
    ) -> tuple[ProcessReading, ...] | None:
        """List who is on a device; ``None`` if the driver does not say who computes."""
        lists: dict[ProcessKind, list[tuple[Any, Any]]] = {}
        for kind, function in _PROCESS_LISTS:
            entries = _listing(getattr(pynvml, function), handle)
            if entries is not None:
                lists[kind] = [(entry.pid, entry.usedGpuMemory) for entry in entries]
        if "compute" not in lists:
            return None
        merged = merge(lists, total, doubt)
        return tuple(
            ProcessReading(pid, memory, kind, self._name(pid, seen)) for pid, memory, kind in merged
        )

    def _name(self, pid: int, seen: dict[int, str | None]) -> str | None:
        """Name a process: once, as long as it stays in the lists from reading to reading."""
        if not self._names_are_ours:
            return None  # the driver counts in another namespace: it would be somebody else's
        if pid not in seen:
            seen[pid] = self._names[pid] if pid in self._names else _command(pid)
        return seen[pid]


def _sick_from(error: pynvml.NVMLError) -> None:
    """Raise ``_Sick`` where an error is about the whole GPU."""
    if error.value in _SICK:
        raise _Sick(_words(error), error.value) from None


def _optional(function: Callable[..., T], *arguments: Any) -> T | None:
    """Call NVML; ``None`` if this driver or this card cannot answer.

    Raises
    ------
    _Sick
        The GPU is lost or has to be reset, which is about more than this one field.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        _sick_from(error)
        return None


def _text(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an NVML function that returns text; text that is no UTF-8 comes back as bytes."""
    try:
        return function(*arguments)
    except UnicodeDecodeError as error:
        return error.object


def _memory(handle: Any) -> Any:
    """Return memory info, of version 2 (which tells the driver's reserve) where there is one."""
    info = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return info if info is not None else _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)


def _listing(function: Callable[..., Any], handle: Any) -> Any:
    """Return a process list; ask again when processes came while it was copied."""
    for _ in range(3):
        try:
            return function(handle)
        except pynvml.NVMLError_InsufficientSize:
            continue
        except pynvml.NVMLLibraryMismatchError:
            return None  # older than this kind of list
        except pynvml.NVMLError as error:
            _sick_from(error)
            return None
    return None


def _words(error: pynvml.NVMLError) -> str:
    return str(error).rstrip(".")


def _command(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() or None
    except OSError:
        return None  # it ended in between, or is hidden from us


def _in_initial_pid_namespace() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _leave_with_parent() -> None:
    """End this process when the other end of stdin is closed, even while a call hangs."""
    gone = select.poll()
    gone.register(0, 0)  # nothing but the hang-up, which is always reported
    gone.poll()
    os._exit(0)


def _requests() -> Iterator[frames.Request]:
    decoder = msgspec.msgpack.Decoder(frames.Request)
    splitter = frames.Splitter()
    while data := os.read(0, 65536):
        yield from map(decoder.decode, splitter.feed(data))


def main() -> None:
    """Answer the parent until it is gone."""
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not come between the frames
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    driver = Driver(lambda *messages: frames.write(out, *messages))
    for request in _requests():
        if isinstance(request, frames.Ask):
            driver.read(request.last, request.details)
            continue
        if isinstance(request, frames.SetMode):
            driver.set_mode(request)
            continue
        try:
            driver.open(request.skip)
        except pynvml.NVMLError as error:
            # A library that failed once is not asked again: the next process loads it afresh.
            frames.write(out, frames.Failed(trouble.sentence_for(error.value, _words(error))))
            return


if __name__ == "__main__":
    main()
