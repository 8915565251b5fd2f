"""Restarting, interrupting and ending a kernel because the broker wants it.

On a restart the cell that asked ends in its own words. What somebody does by hand at that moment
goes first, and counts: a kernel that was replaced meanwhile is not the one that was meant.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from jupyter_core.utils import ensure_async

from genv_jupyter.server.reports import Kernel, Reports

CELL_SECONDS = 2.0
"""For which a running cell, once interrupted, may end before its process does."""

_LOOK = 0.02


async def restart(kernels: Any, kernel: Kernel, reports: Reports, log: logging.Logger) -> None:
    """Restart a kernel, and tell the broker where that brings no process.

    A process that is asked to leave while a cell runs may go before its last messages: that cell,
    and those in the queue behind it, would be shown as running for ever. So the cell is
    interrupted first, and has a moment to say so.

    Parameters
    ----------
    kernels
        The server's kernel manager, which has this kernel.
    """
    manager, launch = kernels.get_kernel(kernel.id), kernel.launch
    if getattr(manager, "execution_state", None) == "busy":
        try:
            await ensure_async(kernels.interrupt_kernel(kernel.id))
        except Exception as error:  # it is to be replaced in any case
            log.info("Kernel %s could not be interrupted: %s", kernel.id, error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CELL_SECONDS):
                while manager.execution_state == "busy":
                    await asyncio.sleep(_LOOK)
    if not await _is_still(kernels, kernel, launch):
        return  # it brought another process, or none is wanted
    try:
        await ensure_async(kernels.restart_kernel(kernel.id))
    except Exception as error:
        if kernel.pid is None:
            reports.not_started(kernel, error)
        raise


async def shut_down(kernels: Any, kernel: Kernel, *, idle: bool) -> None:
    """Shut a kernel down; ``idle``: unless it executes something by then."""
    if await _is_still(kernels, kernel, kernel.launch) and not (idle and kernel.state != "idle"):
        await ensure_async(kernels.shutdown_kernel(kernel.id))


async def interrupt(kernels: Any, kernel: Kernel) -> None:
    """Interrupt what runs in a kernel; in one that is being replaced nothing does."""
    if kernels.get_kernel(kernel.id).ready.done():
        await ensure_async(kernels.interrupt_kernel(kernel.id))


async def _is_still(kernels: Any, kernel: Kernel, launch: int | None) -> bool:
    """Say whether a kernel is the same process, once what is done to it by hand is over.

    Two restarts at once, or a restart and an end, break Jupyter's manager.
    """
    manager = kernels.get_kernel(kernel.id)
    while not manager.ready.done():
        await asyncio.sleep(_LOOK)
    return kernel.launch == launch and kernel.id in kernels
