"""What a process has inherited: the command it belongs to, and the pool it may use.

``jupyter gpu run`` and ``jupyter gpu shell`` become the program they start, which then *is* the
environment's process. Whatever that program starts (a notebook executed by papermill, a JupyterLab)
sees its devices and belongs to its environment. Standard library only.
"""

from __future__ import annotations

import os

from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MARKER, MPS_PIPE, VISIBLE

COMMAND = "GENV_JUPYTER_COMMAND"
"""Holds ``PID-START`` of the process that a command's environment hangs on."""

POOL = "GENV_JUPYTER_POOL"
"""Holds the ``CUDA_VISIBLE_DEVICES`` that was there before a command got its own."""

OPERATORS_MPS = "GENV_JUPYTER_OPERATORS_MPS"
"""Tells a broker that is started what ``mps_pipe`` says of whoever starts it."""

DEFAULT_REQUEST = "GENV_JUPYTER_DEFAULT_REQUEST"
"""Holds what is asked for where nothing else says: ``0.5``, ``1``, ``4G``."""


def this_process() -> str:
    """Name this very process, as ``COMMAND`` has it; a program that replaces it keeps the name."""
    pid = os.getpid()
    return f"{pid}-{processes.start_of(pid)}"


def command() -> str | None:
    """Return the id of the command's environment that this process belongs to, if it does.

    The variables are inherited by whatever outlives the command too, so they are believed only
    where its process is an ancestor of this one, or this one.
    """
    environment = os.environ.get(MARKER)
    claimed = os.environ.get(COMMAND)
    if not environment or not claimed:
        return None
    family = [f"{pid}-{start}" for pid, start in processes.ancestors(os.getpid())]
    family.append(f"1-{processes.start_of(1)}")  # of a container that is the command: of all
    return environment if claimed in family else None


def is_command(pid: int) -> bool:
    """Say whether a process is what ``jupyter gpu run`` or ``shell`` became.

    Such a one sees what it was started with, and nobody can put anything else into it.
    """
    return processes.variable(pid, COMMAND) == f"{pid}-{processes.start_of(pid)}"


def server_pool() -> str | None:
    """Return the ``CUDA_VISIBLE_DEVICES`` of the Jupyter server above this process, if one is."""
    return _of_server(VISIBLE)


def mps_pipe() -> str | None:
    """Return the directory of the MPS daemon that was there before us, if one was named."""
    return _of_server(MPS_PIPE) if MARKER in os.environ else os.environ.get(MPS_PIPE)


def _of_server(name: str) -> str | None:
    server = os.environ.get("JPY_PARENT_PID", "")
    return processes.variable(int(server), name) if server.isdecimal() else None


def pool() -> str | None:
    """Return what limits the devices of a process that was started from here (``None``: nothing).

    Where we have set ``CUDA_VISIBLE_DEVICES`` it says what was granted, and the pool is what was
    there before.
    """
    if COMMAND in os.environ:
        return os.environ.get(POOL)
    return server_pool() if MARKER in os.environ else os.environ.get(VISIBLE)
