"""Out of memory: what is known of it, and the likely cure, in one block under the traceback.

The numbers are the broker's newest reading and, where PyTorch is in use, its own. Nothing here
imports a framework, initialises CUDA, or keeps a traceback waiting: a broker that hangs is left
behind after ``DEADLINE`` seconds.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError
from genv_jupyter.kernel import pids
from genv_jupyter.kernel.memory_errors import Failure
from genv_jupyter.kernel.session import Session
from genv_jupyter.model import Device, Environment

DEADLINE = 1.0


class Torch(NamedTuple):
    """What PyTorch's allocator says of all visible devices, in bytes."""

    allocated: int
    reserved: int


class Facts(NamedTuple):
    """What is known at the time of an error.

    Attributes
    ----------
    environment
        Of this process; ``None`` where the broker knows of none.
    used
        Bytes that the environment's processes hold, by device; ``None`` where that is unknown.
    pid
        Of this process; 0 where the broker means others by the pids that it names.
    silent
        Why the broker said nothing, in a sentence.
    """

    environment: Environment | None = None
    devices: tuple[Device, ...] = ()
    used: dict[str, int | None] = {}  # noqa: RUF012 (a default of NamedTuple; never changed)
    torch: Torch | None = None
    pid: int = 0
    terminal: bool = False
    silent: str = ""


def show(shell: Any, failure: Failure) -> None:
    """Show what is known of a failure in the output of the cell that has just ended."""
    from IPython.display import display

    from genv_jupyter.kernel.oom_view import OutOfMemoryView

    view = OutOfMemoryView(failure, gather(shell))
    # Written out here: what fails inside a formatter of IPython's is shown with its traceback.
    bundle = {"text/plain": repr(view), "text/html": view._repr_html_()}
    display(bundle, raw=True)  # type: ignore[no-untyped-call]


def gather(shell: Any) -> Facts:
    """Return what can be known within the deadline."""
    terminal = getattr(shell, "kernel", None) is None
    found: list[Facts] = []

    def ask() -> None:
        try:
            found.append(_ask(shell))
        except GpuError as error:
            found.append(Facts(silent=str(error)))
        except Exception as error:  # a thread's own traceback would stand under the user's
            found.append(Facts(silent=f"The GPU broker was not understood ({error!r})."))

    # A thread: the calls have time limits, but not all of them together.
    thread = threading.Thread(target=ask, name="genv-jupyter-oom", daemon=True)
    thread.start()
    thread.join(DEADLINE)
    facts = (
        found[0] if found else Facts(silent=f"The GPU broker did not answer within {DEADLINE:g} s.")
    )
    return facts._replace(torch=torch_memory(), terminal=terminal)


def _ask(shell: Any) -> Facts:
    client = Client(start=False, timeout=DEADLINE)
    try:
        # First, since it reads the devices anew; what is asked then is as fresh.
        devices = tuple(client.devices(fresh=True))
        environment = Session(shell, client).environment() or pids.find(client)
        if environment is None:
            return Facts(devices=devices)
        pid = os.getpid() if pids.same() else 0
        used = {it.device: it.memory_used for it in client.usage(environment.id).grants}
        for process in environment.processes or ():
            if process.device not in used:
                used[process.device] = sum(
                    it.memory or 0
                    for it in environment.processes or ()
                    if it.device == process.device
                )
        return Facts(environment, devices, used, pid=pid)
    finally:
        client.close()


def torch_memory() -> Torch | None:
    """Return PyTorch's own numbers if it is loaded and has initialised CUDA by itself."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return None
        ordinals: Sequence[int] = range(cuda.device_count())
        return Torch(
            sum(int(cuda.memory_allocated(it)) for it in ordinals),
            sum(int(cuda.memory_reserved(it)) for it in ordinals),
        )
    except Exception:  # half imported, or a device that no longer answers: its numbers are a bonus
        return None
