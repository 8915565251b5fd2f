"""``%gpu empty-cache``: lets go of what nobody needs any more, and says how much came back.

Nothing is imported here that is not imported already, and CUDA is not initialised by it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from genv_jupyter.errors import GpuError
from genv_jupyter.isolation import live
from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import Block, Text, Title, facts
from genv_jupyter.kernel.session import Session
from genv_jupyter.kernel.views import PageView
from genv_jupyter.units import format_memory

FRESH_SECONDS = 3.0
"""For which a reading that is newer than the call is waited for: the broker makes one a second."""

PAUSE = 0.1

Used = Mapping[str, int | None]
"""Bytes that this environment's processes hold, by device; ``None`` is unknown."""


def empty(session: Session) -> PageView:
    """Let go of the last traceback, of outputs, and of what frameworks keep in reserve."""
    environment, trouble = None, ""
    try:
        environment = session.environment()
    except GpuError as error:
        trouble = str(error)
    before = _read(session, environment.id) if environment is not None else {}
    cleared = _clear(session.shell)
    gc.collect()
    said = _frameworks()
    after = _read(session, environment.id) if environment is not None and before else {}
    mark = ""
    labels: dict[str, str] = {}
    if before:
        devices = session.devices(environment)
        mark = words.mark(devices)
        labels = {device.uuid: words.device_label(device) for device in devices}
    blocks: list[Block] = [Title(_head(before, after), mark)]
    rows = [
        (labels.get(uuid, words.short(uuid)), _change(used, after.get(uuid)))
        for uuid, used in before.items()
    ]
    if rows:
        blocks.append(facts(rows))
    blocks += [Text(line, "plain", 2) for line in (*cleared, *said)]
    if trouble:
        blocks.append(Text(trouble, "warn"))
    return PageView(blocks)


def _head(before: Used, after: Used) -> str:
    if not before:
        return "Emptied."
    changes = [
        None if used is None or (now := after.get(uuid)) is None else used - now
        for uuid, used in before.items()
    ]
    if any(change is None for change in changes):
        return "Emptied; how much came back is not known."
    freed = sum(change or 0 for change in changes)
    return f"{format_memory(freed)} came back." if freed > 0 else "Nothing came back."


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "the driver does not tell what this environment uses"
    if before == after:
        return f"{words.in_use(after)} in use here, as before"
    return f"{words.in_use(after)} in use here, {words.in_use(before)} before"


def _read(session: Session, environment: str) -> dict[str, int | None]:
    """Return what is used, of a reading that was begun after this call; unknown if none comes."""
    asked = datetime.now(UTC)
    deadline = time.monotonic() + FRESH_SECONDS
    try:
        while True:
            usage = session.client.usage(environment)
            fresh = usage.at is not None and usage.at >= asked
            if fresh or not usage.grants or time.monotonic() > deadline:
                return {
                    grant.device: grant.memory_used if fresh else None for grant in usage.grants
                }
            time.sleep(PAUSE)
    except GpuError:  # emptying works without a broker: how much came back is then not known
        return {}


# -- what IPython keeps ---------------------------------------------------------------------------


def _clear(shell: Any) -> list[str]:
    said = []
    if _forget_traceback(shell):
        said.append("Let go of the last traceback (%debug has nothing to show now).")
    number = _forget_outputs(shell)
    if number:
        said.append(f"Let go of {number} output{'' if number == 1 else 's'} (Out, _).")
    return said


def _forget_traceback(shell: Any) -> bool:
    """Let go of the frames of the last error, and of all that their variables hold."""
    found = getattr(sys, "last_value", None) is not None
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    printer = getattr(shell, "InteractiveTB", None)
    if printer is not None and getattr(printer, "tb", None) is not None:
        printer.tb = None
    debugger = getattr(printer, "pdb", None)
    if debugger is not None:
        debugger.forget()
        debugger.botframe = None
    if getattr(shell, "last_execution_result", None) is not None:
        shell.last_execution_result = None
    return found


def _forget_outputs(shell: Any) -> int:
    """Empty ``Out`` and what points into it; names that the user has set himself stay."""
    space, hook = shell.user_ns, getattr(shell, "displayhook", None)
    outputs = space.get("_oh")
    if not isinstance(outputs, dict):
        return 0
    number = len(outputs)
    for key, value in list(outputs.items()):
        name = f"_{key}"
        if space.get(name) is value:
            del space[name]
            shell.user_ns_hidden.pop(name, None)
    outputs.clear()
    for name in ("_", "__", "___"):
        if hasattr(hook, name):
            if name in space and space[name] is getattr(hook, name):
                space[name] = ""
            if name in shell.user_ns_hidden:  # which keeps a reference of its own
                shell.user_ns_hidden[name] = ""
            setattr(hook, name, "")
    return number


# -- what frameworks keep -------------------------------------------------------------------------


def _frameworks() -> list[str]:
    """Empty the caches of the frameworks that are loaded, and say what each says of itself."""
    if live.cuda_state() != "initialized":
        return ["CUDA is not initialised here: no framework holds memory of a GPU."]
    said = []
    for name, empty_it in _EMPTY.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            line = empty_it(module)
        except Exception as error:  # a CUDA error of the user's makes every later call fail
            first = str(error).partition("\n")[0] or type(error).__name__
            line = f"{name}: its cache could not be emptied ({first})."
        if line:
            said.append(line)
    return said


def _torch(torch: ModuleType) -> str | None:
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    numbers = range(cuda.device_count())
    before = sum(cuda.memory_reserved(number) for number in numbers)
    cuda.empty_cache()
    after = sum(cuda.memory_reserved(number) for number in numbers)
    tensors = sum(cuda.memory_allocated(number) for number in numbers)
    return (
        f"torch: {words.in_use(after)} reserved, {words.in_use(before)} before; "
        f"{words.in_use(tensors)} is in tensors that are still referred to."
    )


def _cupy(cupy: ModuleType) -> str:
    pool = cupy.get_default_memory_pool()
    before = pool.total_bytes()
    pool.free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    after = pool.total_bytes()
    return f"cupy: {words.in_use(after)} in its pool, {words.in_use(before)} before."


def _jax(jax: ModuleType) -> str | None:
    if not hasattr(jax, "clear_caches"):
        return None
    jax.clear_caches()
    return "jax: compiled functions were dropped; the memory it has taken stays its own."


def _tensorflow(tensorflow: ModuleType) -> str:
    return "tensorflow: it gives memory back only when the kernel restarts."


_EMPTY: dict[str, Callable[[ModuleType], str | None]] = {
    "torch": _torch,
    "cupy": _cupy,
    "jax": _jax,
    "tensorflow": _tensorflow,
}
