"""One fake driver: a directory with the libraries, the scenario, and the state of its users."""

from __future__ import annotations

import copy
import json
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from tests.fakedriver.building import build
from tests.fakedriver.scenario import DeviceSpec, Fault, ProcessSpec, Scenario, default_scenario

_COUNT = struct.Struct("=Q")
_ROW = struct.Struct("=iIQQQ96s")  # struct holding of common.h


class Context(NamedTuple):
    """What one living process holds on one device or MIG instance."""

    pid: int
    device: str
    contexts: int
    memory: int
    """Bytes of contexts and allocations together."""


class FakeDriver:
    """A driver for every process that has ``environ``; changes are seen by running ones at once.

    Parameters
    ----------
    directory
        Where it lives; made if need be. None: a temporary one, removed by ``close``.
    scenario
        What it is; two idle devices of 24 GiB by default.

    Raises
    ------
    CannotBuild
        No compiler, or NVIDIA's headers are not installed.
    """

    def __init__(self, directory: Path | None = None, scenario: Scenario | None = None) -> None:
        libraries = build()
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="fakedriver-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        # The libraries look for the scenario beside themselves, by the path they were loaded from.
        for library in libraries.iterdir():
            (self.directory / library.name).symlink_to(library)
        self._lock = threading.Lock()
        self._scenario = copy.deepcopy(scenario) if scenario is not None else default_scenario()
        self._write()
        self._calls.write_bytes(bytes(_COUNT.size))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary directory; a process that still runs has no driver then."""
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def environ(self) -> dict[str, str]:
        """Variables that give a process this driver, from its start."""
        inherited = os.environ.get("LD_LIBRARY_PATH")
        paths = [str(self.directory), *([inherited] if inherited else [])]
        return {
            "LD_LIBRARY_PATH": ":".join(paths),
            "FAKEDRIVER_SCENARIO": str(self.directory / "scenario.json"),
            "FAKEDRIVER_STATE": str(self._state),
        }

    @property
    def scenario(self) -> Scenario:
        """A copy of what it is now."""
        with self._lock:
            return copy.deepcopy(self._scenario)

    @property
    def uuids(self) -> list[str]:
        """The devices in NVML's order, lost ones included, MIG instances not."""
        return [spec["uuid"] for spec in self.scenario["devices"]]

    # ---- changes ----

    def update(self, **keys: Any) -> None:
        """Set keys of ``Scenario``."""
        if unknown := keys.keys() - Scenario.__annotations__.keys():
            raise TypeError(f"Scenario has no {', '.join(sorted(unknown))}")
        self._change(lambda scenario: scenario.update(cast(Scenario, keys)))

    def update_device(self, uuid: str, **keys: Any) -> None:
        """Set keys of the ``DeviceSpec`` or ``InstanceSpec`` of that UUID."""
        self._change(lambda scenario: _find(scenario, uuid).update(keys))
        if "compute_mode" in keys:
            self._mode(uuid).unlink(missing_ok=True)

    def set_external(self, uuid: str, memory: int) -> None:
        """Let that many bytes be in use by nobody who is listed."""
        self.update_device(uuid, memory_external=memory)

    def set_processes(self, uuid: str, processes: Sequence[ProcessSpec]) -> None:
        """Let NVML list these processes, beside those that really hold contexts."""
        self.update_device(uuid, processes=list(processes))

    def xid(self, uuid: str, code: int) -> None:
        """Let the device have a critical error of that number."""
        self._change(lambda scenario: _find(scenario, uuid).setdefault("xids", []).append(code))

    def lose(self, uuid: str) -> None:
        """Let the device fall off the bus: still counted, each call about it fails."""
        self.update_device(uuid, lost=True)

    def restore(self, uuid: str) -> None:
        """Bring a lost device back."""
        self.update_device(uuid, lost=False)

    def add_device(self, spec: DeviceSpec) -> None:
        """Plug one in. NVML shows it to processes that initialise afterwards."""
        self._change(lambda scenario: scenario["devices"].append(spec))

    def remove_device(self, uuid: str) -> None:
        """Take one out. Who has its handle sees it as lost."""

        def remove(scenario: Scenario) -> None:
            scenario["devices"].remove(cast(DeviceSpec, _find(scenario, uuid)))

        self._change(remove)

    def fail(self, function: str, fault: Fault, uuid: str | None = None) -> None:
        """Let a function fail: an error code, ``"hang"`` or ``"crash"``; for one device, or all."""

        def add(scenario: Scenario) -> None:
            where = _find(scenario, uuid) if uuid else cast(dict[str, Any], scenario)
            where.setdefault("fail", {})[function] = fault

        self._change(add)

    def hang(self, function: str, uuid: str | None = None) -> None:
        """Let a function never return; the process can be ended by SIGKILL only."""
        self.fail(function, "hang", uuid)

    def crash(self, function: str, uuid: str | None = None) -> None:
        """Let a function end its process with SIGSEGV."""
        self.fail(function, "crash", uuid)

    def heal(self, function: str | None = None) -> None:
        """Take back the faults of a function, or all, on all devices. A call that hangs stays."""

        def drop(scenario: Scenario) -> None:
            places: list[Any] = [scenario]
            for spec in scenario["devices"]:
                places += [spec, *spec.get("mig", [])]
            for place in places:
                faults = place.get("fail", {})
                for name in [function] if function else list(faults):
                    faults.pop(name, None)

        self._change(drop)

    # ---- what is going on ----

    def contexts(self) -> list[Context]:
        """Return who holds a context now, by device and pid."""
        try:
            table = self._state.read_bytes()
        except FileNotFoundError:  # nobody initialised anything yet
            return []
        found = []
        for pid, count, ticks, context_bytes, allocated, name in _ROW.iter_unpack(table):
            if count and _start_ticks(pid) == ticks:
                device = name.split(b"\0", 1)[0].decode()
                found.append(Context(pid, device, count, context_bytes + allocated))
        return sorted(found, key=lambda context: (context.device, context.pid))

    def compute_mode(self, uuid: str) -> int:
        """Return the mode of a device, as NVML set it last, or else as the scenario has it."""
        try:
            return int(self._mode(uuid).read_text())
        except FileNotFoundError:
            return int(_find(self.scenario, uuid).get("compute_mode", 0))

    @property
    def nvml_calls(self) -> int:
        """How often NVML was called since this driver was made, by all processes together."""
        return int(_COUNT.unpack(self._calls.read_bytes())[0])

    @property
    def _calls(self) -> Path:
        return self.directory / "scenario.json.calls"

    def _mode(self, uuid: str) -> Path:
        return self.directory / f"scenario.json.mode.{uuid}"

    @property
    def _state(self) -> Path:
        return self.directory / "scenario.json.state"

    def _change(self, change: Callable[[Scenario], object]) -> None:
        with self._lock:
            change(self._scenario)
            self._write()

    def _write(self) -> None:
        path = self.directory / "scenario.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self._scenario, indent=1))
        fresh.replace(path)  # a process reads the old one or the new one


def _find(scenario: Scenario, uuid: str) -> dict[str, Any]:
    for spec in scenario["devices"]:
        for place in (spec, *spec.get("mig", [])):
            if place["uuid"] == uuid:
                return cast(dict[str, Any], place)
    raise KeyError(f"The scenario has no device {uuid}")


def _start_ticks(pid: int) -> int:
    """Return a living process's start in clock ticks since boot; 0 for a dead one or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])
