"""Worker processes that share a grant, each with its part.

A cap under MPS counts for each process, and so does what frameworks are told. Attach for as many as
there will be (``%gpu attach 0.5 --processes 4``), then start the workers with their parts::

    from concurrent.futures import ProcessPoolExecutor
    from genv_jupyter import workers

    with ProcessPoolExecutor(4, **workers.parts(4)) as pool:
        answers = list(pool.map(model.answer, questions))

``multiprocessing.Pool`` takes the same, but for its own name of the context: see ``parts``.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import BaseContext
from typing import Any, TypedDict

from genv_jupyter.errors import Conflict, UnknownEnvironment
from genv_jupyter.isolation import live
from genv_jupyter.isolation.caps import LIMIT
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.model import Environment

__all__ = ["Parts", "parts", "start"]

Environ = dict[str, "str | None"]


class Parts(TypedDict):
    """The arguments of ``ProcessPoolExecutor`` that give each worker its part."""

    mp_context: BaseContext
    initializer: Any
    initargs: tuple[Environ]


def parts(processes: int, *, method: str = "spawn") -> Parts:
    """Return what gives each of so many workers its part of this process's grant.

    Parameters
    ----------
    processes
        How many workers there will be.
    method
        How they are started, as ``multiprocessing`` calls it. In a ``fork`` of a process in which
        CUDA is initialised it does not work; ``spawn`` and ``forkserver`` need functions that are
        in a module, not in a cell.

    Returns
    -------
    Parts
        For ``concurrent.futures.ProcessPoolExecutor``. A ``multiprocessing.Pool`` is made by the
        context: ``given.pop("mp_context").Pool(4, **given)``.

    Raises
    ------
    UnknownEnvironment
        This process has no environment.
    Conflict
        Nothing is attached here, or it was attached for fewer processes.
    GpuError
        The broker cannot be asked.
    """
    from genv_jupyter.api.client import Client

    marker = os.environ.get(MARKER)
    if marker is None:
        raise UnknownEnvironment(
            "This process has no GPU environment.", hint="`%gpu attach 0.5` first."
        )
    environ = _part(Client().environment(marker), processes)
    return {
        "mp_context": multiprocessing.get_context(method),
        "initializer": start,
        "initargs": (environ,),
    }


def start(environ: Environ) -> None:
    """Give this process, a worker that has just begun, its part.

    Raises
    ------
    RuntimeError
        CUDA is initialised here already, so it is too late: it was forked from a process that uses
        CUDA, say.
    """
    if live.cuda_state() == "initialized":
        raise RuntimeError(
            "CUDA was initialised before this worker began, so it cannot have a part of its own: "
            "start workers with the method 'spawn'."
        )
    live.apply_environ(environ)


def _part(environment: Environment, processes: int) -> Environ:
    """Return the variables of each worker."""
    held = [grant for grant in environment.grants if grant.state == "granted"]
    if not held or environment.environ is None:
        raise Conflict("Nothing is attached here.", hint="`%gpu attach 0.5` first.")
    request = environment.request
    planned = 1 if request is None else request.processes or 1
    shared = any(not grant.exclusive for grant in held)
    if shared and processes > planned:
        raise Conflict(
            f"This grant is made for {planned} process{'' if planned == 1 else 'es'}, and "
            f"{processes} are to share it: the cap counts for each.",
            hint=f"`%gpu attach --processes {processes}` first.",
        )
    environ = dict(environment.environ)
    if not shared:
        # Nobody else is there, and no variable says how much each of them may take.
        environ[LIMIT] = ",".join(str(grant.memory // processes) for grant in held)
    return environ
