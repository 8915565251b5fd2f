"""The driver's failures as sentences: what is wrong, and what to do about it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

KERNEL_SIDE = Path("/proc/driver/nvidia/version")
OPENING = "The NVIDIA driver is being opened, which takes a while where persistence mode is off."
SLOW = "The NVIDIA driver answers slowly: the present reading takes longer than it may."
BUSY = "Another reading of the NVIDIA driver is still under way; ask again in a moment."
CLOSED = "The reading of the devices was ended."
_ASK_KERNEL = "see `nvidia-smi` and `sudo dmesg | grep -i nvrm`"


def sentence_for(code: int, words: str) -> str:
    """Say why NVML (its error ``code``, in its own ``words``) cannot be opened, and what to do."""
    # Only the child, which has it loaded anyway, comes here; the parent does without pynvml.
    import pynvml

    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        if KERNEL_SIDE.exists():
            return (
                "The NVIDIA kernel module is loaded and its library libnvidia-ml.so.1 cannot be "
                "found: install the driver's libraries of the same version, or start the "
                "container with the NVIDIA Container Toolkit (`--gpus all`)."
            )
        return (
            "There is no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded): install it, or "
            "start the container with the NVIDIA Container Toolkit (`--gpus all`)."
        )
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return (
            "The NVIDIA driver is installed and its kernel module is not loaded: run "
            "`sudo modprobe nvidia`, reboot if it was just installed, or start the container "
            "with `--gpus all`."
        )
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        loaded = _loaded_version()
        return (
            "The NVIDIA driver was upgraded while its old kernel module"
            f"{f' {loaded}' if loaded else ''} is loaded, so library and module do not fit: "
            "reboot, or reload the nvidia modules."
        )
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return (
            "This user may not open the NVIDIA devices: check the permissions of /dev/nvidia* "
            "(often membership in the group `video`), or the container's device rules."
        )
    if code in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA):
        return no_devices()
    return f"The NVIDIA driver cannot be opened ({words}): {_ASK_KERNEL}, or reboot."


def no_devices() -> str:
    """Say that the driver works and there is nothing to drive."""
    return (
        "The NVIDIA driver works and finds no GPU: check that the card is seen by `lspci`, or "
        "start the container with `--gpus all`."
    )


def hanging(index: int | None, seconds: float) -> str:
    """Say that the driver (or one device) did not answer in time."""
    if index is None:
        return (
            f"The NVIDIA driver does not answer (nothing for {seconds:g} s): {_ASK_KERNEL}; it is "
            "tried again by itself, and a reboot cures it if it stays so."
        )
    return (
        f"GPU {index} does not answer (nothing for {seconds:g} s) and is left out, the others go "
        f"on: {_ASK_KERNEL}; it is tried again by itself, and may need a reset or a reboot."
    )


def crashed(index: int | None, returncode: int | None, last_words: str) -> str:
    """Say that the process that reads the driver ended."""
    how = "ended"
    if returncode is not None and returncode < 0:
        how = f"crashed with {_signal_name(-returncode)}"
    elif returncode:
        how = f"ended with status {returncode}"
    said = f" ({last_words})" if last_words else ""
    if index is None:
        return (
            f"The process that reads the NVIDIA driver {how}{said}; it is started again by "
            f"itself: if it stays so, {_ASK_KERNEL}, and reinstall the driver."
        )
    return (
        f"The NVIDIA driver {how} over GPU {index}{said}, which is left out while the others go "
        f"on: {_ASK_KERNEL}; it is tried again by itself, and may need a reset or a reboot."
    )


def not_started(error: OSError) -> str:
    """Say that the process that reads the driver cannot be started."""
    return (
        f"The process that reads the NVIDIA driver cannot be started ({error.strerror or error}): "
        "check memory and the limit of processes (`ulimit -u`)."
    )


def stuck(pids: list[int]) -> str:
    """Say that readers hang in the kernel, where no signal reaches them."""
    listed = ", ".join(str(pid) for pid in pids)
    return (
        f"The NVIDIA driver hangs: the processes {listed} that read it cannot even be killed, so "
        "no more are started; only a reboot cures that."
    )


def nameless(index: int, lost: bool, why: str) -> str:
    """Say that there is a GPU that cannot even be named."""
    what = "fell off the bus" if lost else "cannot be read"
    return f"GPU {index} {what} ({why or 'no reason given'}), the others go on: {_ASK_KERNEL}."


def _loaded_version() -> str | None:
    try:
        text = KERNEL_SIDE.read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
