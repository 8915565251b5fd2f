"""The device files of GPUs on this host, for units that may open some of them alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from genv_jupyter.errors import UnknownDevice

DRIVER = Path("/proc/driver/nvidia/gpus")
EVERYBODYS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
"""What CUDA opens besides the devices themselves; it gives access to none of them."""


def device_allow(devices: Iterable[str], driver: Path | None = None) -> list[str]:
    """Return the values of systemd's ``DeviceAllow`` for devices; for none of them: nothing.

    Raises
    ------
    UnknownDevice
        The driver does not tell which file that is: it is a MIG instance, or gone.
    """
    minors = _minors(DRIVER if driver is None else driver)
    allowed = []
    for uuid in devices:
        if uuid not in minors:
            raise UnknownDevice(
                f"The driver does not tell the device file of {uuid}.",
                hint="Device files are those of whole GPUs, on the host that the Hub runs on.",
            )
        allowed.append(f"/dev/nvidia{minors[uuid]} rw")
    return [*allowed, *(f"{path} rw" for path in EVERYBODYS)] if allowed else []


def _minors(driver: Path) -> dict[str, int]:
    """Return the minor number of each device, by its UUID."""
    found = {}
    for path in sorted(driver.glob("*/information")):
        told = dict(_split(line) for line in path.read_text().splitlines() if ":" in line)
        minor = told.get("Device Minor", "")
        if minor.isdigit():
            found[told.get("GPU UUID", "")] = int(minor)
    return found


def _split(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
