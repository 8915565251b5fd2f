"""The particulars of a GPU as NVML tells them: called in the child process, and only when asked.

A table of calls, each optional on its own. What never changes is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from genv_jupyter.details import Details
from genv_jupyter.devices.readings import clean_text

Call = Callable[..., Any]
MOST = 2**50


class _Ask(NamedTuple):
    """Which fields a call gives: attributes of its result, or its parts, or all of it."""

    fields: tuple[str, ...]
    function: str
    arguments: tuple[Any, ...] = ()
    parts: tuple[str | int, ...] = ()


_GRAPHICS, _SM = pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM
_MEMORY, _VIDEO = pynvml.NVML_CLOCK_MEM, pynvml.NVML_CLOCK_VIDEO
_CORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED

_FIXED = (
    _Ask(
        ("pci_bus_id", "pci_device_id", "pci_subsystem_id"),
        "nvmlDeviceGetPciInfo",
        parts=("busId", "pciDeviceId", "pciSubSystemId"),
    ),
    _Ask(("minor",), "nvmlDeviceGetMinorNumber"),
    _Ask(("serial",), "nvmlDeviceGetSerial"),
    _Ask(("vbios",), "nvmlDeviceGetVbiosVersion"),
    _Ask(("brand",), "nvmlDeviceGetBrand"),
    _Ask(("architecture",), "nvmlDeviceGetArchitecture"),
    _Ask(("power_management",), "nvmlDeviceGetPowerManagementMode"),
    _Ask(("power_default",), "nvmlDeviceGetPowerManagementDefaultLimit"),
    _Ask(("power_min", "power_max"), "nvmlDeviceGetPowerManagementLimitConstraints", parts=(0, 1)),
    _Ask(("graphics_clock_max",), "nvmlDeviceGetMaxClockInfo", (_GRAPHICS,)),
    _Ask(("sm_clock_max",), "nvmlDeviceGetMaxClockInfo", (_SM,)),
    _Ask(("memory_clock_max",), "nvmlDeviceGetMaxClockInfo", (_MEMORY,)),
    _Ask(("video_clock_max",), "nvmlDeviceGetMaxClockInfo", (_VIDEO,)),
    _Ask(("pcie_generation_max",), "nvmlDeviceGetMaxPcieLinkGeneration"),
    _Ask(("pcie_generation_device_max",), "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    _Ask(("pcie_width_max",), "nvmlDeviceGetMaxPcieLinkWidth"),
)
_CHANGING = (
    _Ask(("persistence",), "nvmlDeviceGetPersistenceMode"),
    _Ask(("display_mode",), "nvmlDeviceGetDisplayMode"),
    _Ask(("display_active",), "nvmlDeviceGetDisplayActive"),
    _Ask(("fan",), "nvmlDeviceGetFanSpeed"),
    _Ask(("temperature",), "nvmlDeviceGetTemperature", (pynvml.NVML_TEMPERATURE_GPU,)),
    _Ask(("pstate",), "nvmlDeviceGetPerformanceState"),
    _Ask(("power_draw",), "nvmlDeviceGetPowerUsage"),
    _Ask(("power_limit",), "nvmlDeviceGetEnforcedPowerLimit"),
    _Ask(("power_requested",), "nvmlDeviceGetPowerManagementLimit"),
    _Ask(("memory_utilization",), "nvmlDeviceGetUtilizationRates", parts=("memory",)),
    _Ask(("encoder",), "nvmlDeviceGetEncoderUtilization", parts=(0,)),
    _Ask(("decoder",), "nvmlDeviceGetDecoderUtilization", parts=(0,)),
    _Ask(("ecc", "ecc_pending"), "nvmlDeviceGetEccMode", parts=(0, 1)),
    _Ask(("mig", "mig_pending"), "nvmlDeviceGetMigMode", parts=(0, 1)),
    _Ask(("graphics_clock",), "nvmlDeviceGetClockInfo", (_GRAPHICS,)),
    _Ask(("sm_clock",), "nvmlDeviceGetClockInfo", (_SM,)),
    _Ask(("memory_clock",), "nvmlDeviceGetClockInfo", (_MEMORY,)),
    _Ask(("video_clock",), "nvmlDeviceGetClockInfo", (_VIDEO,)),
    _Ask(("pcie_generation",), "nvmlDeviceGetCurrPcieLinkGeneration"),
    _Ask(("pcie_width",), "nvmlDeviceGetCurrPcieLinkWidth"),
    _Ask(
        ("bar1_total", "bar1_used", "bar1_free"),
        "nvmlDeviceGetBAR1MemoryInfo",
        parts=("bar1Total", "bar1Used", "bar1Free"),
    ),
)
_ERRORS = (
    _Ask(("ecc_corrected",), "nvmlDeviceGetTotalEccErrors", (_CORRECTED, 0)),
    _Ask(("ecc_uncorrected",), "nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, 0)),
    _Ask(("ecc_corrected_ever",), "nvmlDeviceGetTotalEccErrors", (_CORRECTED, 1)),
    _Ask(("ecc_uncorrected_ever",), "nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, 1)),
)


class DetailsReader:
    """Reads particulars.

    Parameters
    ----------
    call
        Calls a function of NVML, and returns ``None`` where the card cannot answer.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._fixed: dict[str, dict[str, Any]] = {}

    def read(self, handle: Any, uuid: str) -> Details:
        """Read everything of one GPU."""
        fixed = self._fixed.get(uuid)
        if fixed is None:
            fixed = self._fixed[uuid] = self._ask(_FIXED, handle)
        now = self._ask(_CHANGING, handle)
        if now.get("ecc"):  # a card without it answers four times that it has none
            now |= self._ask(_ERRORS, handle)
        return Details(**fixed, **now)

    def _ask(self, table: tuple[_Ask, ...], handle: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for ask in table:
            function = getattr(pynvml, ask.function)
            result = self._call(function, handle, *ask.arguments)
            if result is None:
                continue
            values = [_part(result, part) for part in ask.parts] or [result]
            cleaned = (_clean(value) for value in values)
            found.update(
                (field, value)
                for field, value in zip(ask.fields, cleaned, strict=True)
                if value is not None
            )
        return found


def _part(result: Any, part: str | int) -> Any:
    return result[part] if isinstance(part, int) else getattr(result, part)


def _clean(value: Any) -> Any:
    """Return a number or a text that can be believed; ``None`` for what cannot be."""
    if isinstance(value, str | bytes):
        return clean_text(value)
    return value if isinstance(value, int) and 0 <= value <= MOST else None
