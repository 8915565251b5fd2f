"""Applying an environment's variables inside a living kernel that this server owns.

A Python expression of pure standard library travels to the kernel, so nothing of ours need be
installed there. Where the kernel offers subshells it runs beside a busy cell; otherwise it is a
silent request that waits its turn, and is repeated when a failing cell aborts the queue.
"""

from __future__ import annotations

import ast
import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from msgspec import UNSET, Struct, UnsetType

from genv_jupyter.isolation import live
from genv_jupyter.isolation.environ import revision_of
from genv_jupyter.model import Applied, Cuda
from genv_jupyter.server.pulses import Pulses
from genv_jupyter.server.talking import channels, request

Environ = Mapping[str, str | None]

PROBE_SECONDS = 0.3
APPLY_SECONDS = 3600.0
"""For which a request waits in the queue of a busy kernel without subshells."""

_CONTROL_SECONDS = 0.25
_ABORTED_PAUSE = 0.05
_NAME = "genv_jupyter"
_ROUNDS = 5


class Outcome(Struct, frozen=True):
    """What was seen in a kernel. ``applied`` is ``None`` where nothing was to be applied.

    ``visible`` is there only where it was read back in the process.
    """

    applied: Applied | None
    cuda: Cuda
    revision: int | None = None
    visible: str | UnsetType | None = UNSET


class Unreachable(Exception):
    """The kernel does not understand us, or did not answer in time."""


class Applier:
    """Probes and changes the variables of living kernels.

    Parameters
    ----------
    manager_of
        Returns the kernel manager of a kernel id, ``None`` where it is not ours.
    tell
        Reports to the broker how applying variables went, and returns those that the environment
        has now (``None`` when it is gone).
    """

    def __init__(
        self,
        manager_of: Callable[[str], Any],
        tell: Callable[[str, Environ, Outcome], Awaitable[Environ | None]],
        log: logging.Logger,
    ) -> None:
        self._manager_of = manager_of
        self._tell = tell
        self._log = log
        self._under_way: dict[str, tuple[Environ, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._subshells: dict[str, bool] = {}
        self.pulses = Pulses(manager_of, log)

    async def probe(self, kernel: str) -> Cuda:
        """Say whether CUDA is initialised in a kernel, if it answers at once."""
        outcome = await self.ask(kernel, None, PROBE_SECONDS)
        return outcome.cuda if outcome is not None else "unknown"

    async def ask(self, kernel: str, environ: Environ | None, seconds: float) -> Outcome | None:
        """Probe a kernel and, with variables, apply them; ``None`` when it did not answer."""
        manager = self._manager_of(kernel)
        if manager is None or not _is_python(manager):
            return None
        try:
            async with asyncio.timeout(seconds):
                answer = await self._evaluate(kernel, manager, live.expression(environ))
        except (TimeoutError, Unreachable) as error:
            self._log.debug("kernel %s did not say how CUDA is: %s", kernel, error)
            return None
        return Outcome(
            answer.get("applied"),
            answer["cuda"],
            answer.get("revision"),
            answer.get("visible", UNSET),
        )

    def apply(self, kernel: str, environ: Environ) -> asyncio.Task[None]:
        """Apply variables and tell the broker how it went; joins the same already under way."""
        before = self._under_way.get(kernel)
        if before is not None and before[0] == environ:
            return before[1]
        task = asyncio.create_task(self._apply(kernel, environ, before and before[1]))
        self._tasks.add(task)
        self._under_way[kernel] = (environ, task)
        task.add_done_callback(lambda done: self._done(kernel, done))
        return task

    def forget(self, kernel: str) -> None:
        """The process of a kernel is gone: nothing is waited for any more."""
        self._subshells.pop(kernel, None)
        self.pulses.forget(kernel)
        under_way = self._under_way.pop(kernel, None)
        if under_way is not None:
            under_way[1].cancel()

    async def close(self) -> None:
        """Give up all that is under way; an open socket would hold up the end of the process."""
        tasks = self._tasks | self.pulses.tasks
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- applying -------------------------------------------------------------------------------

    async def _apply(
        self, kernel: str, environ: Environ, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            try:
                await asyncio.wait({before})
            except asyncio.CancelledError:
                before.cancel()
                raise
        wanted: Environ | None = environ
        for _ in range(_ROUNDS):
            manager = self._manager_of(kernel)
            if wanted is None or manager is None:
                return
            environ = wanted
            if _is_python(manager):
                outcome = await self.ask(kernel, environ, APPLY_SECONDS)
            else:
                outcome = Outcome("at_restart", "unknown", revision_of(environ))
            # What is wanted may have changed while this waited in the kernel's queue.
            outcome = outcome or Outcome("unknown", "unknown")
            wanted = await self._tell(kernel, environ, outcome)
            if wanted == environ:
                return

    def _done(self, kernel: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        current = self._under_way.get(kernel)
        if current is not None and current[1] is task:
            del self._under_way[kernel]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.warning("GPU variables of kernel %s were not applied: %s", kernel, error)

    # -- talking to a kernel --------------------------------------------------------------------

    async def _evaluate(self, kernel: str, manager: Any, expression: str) -> dict[str, Any]:
        async with channels(manager) as client:
            subshell = await self._open_subshell(kernel, client)
            try:
                while True:
                    reply = await _execute(client, expression, subshell)
                    if reply["status"] != "aborted":
                        return _result(reply)
                    self._log.debug("kernel %s aborted its queue: asking again", kernel)
                    await asyncio.sleep(_ABORTED_PAUSE)
            finally:
                if subshell is not None:
                    content = {"subshell_id": subshell}
                    await request(
                        client, "control", "delete_subshell_request", content, _CONTROL_SECONDS
                    )
                    self.pulses.look(kernel)

    async def _open_subshell(self, kernel: str, client: AsyncKernelClient) -> str | None:
        """Open a subshell where the kernel offers them; else ``None``: its main shell."""
        if kernel not in self._subshells:
            info = await request(client, "control", "kernel_info_request", {}, _CONTROL_SECONDS)
            if info is None:
                return None
            self._subshells[kernel] = "kernel subshells" in info.get("supported_features", ())
        if not self._subshells[kernel]:
            return None
        reply = await request(client, "control", "create_subshell_request", {}, _CONTROL_SECONDS)
        return None if reply is None else reply.get("subshell_id")


async def _execute(
    client: AsyncKernelClient, expression: str, subshell: str | None
) -> dict[str, Any]:
    content = {
        "code": "",
        "silent": True,
        "store_history": False,
        "user_expressions": {_NAME: expression},
        "allow_stdin": False,
        "stop_on_error": False,
    }
    reply = await request(client, "shell", "execute_request", content, None, subshell)
    if reply is None:
        raise Unreachable("no answer")
    return reply


def _result(reply: dict[str, Any]) -> dict[str, Any]:
    """Read the value of our expression: the text form of a string that is JSON."""
    try:
        text = reply["user_expressions"][_NAME]["data"]["text/plain"]
        answer = json.loads(ast.literal_eval(text))
        if answer["cuda"] not in ("initialized", "not_initialized"):
            raise ValueError(answer["cuda"])
    except (KeyError, TypeError, ValueError, SyntaxError) as error:
        raise Unreachable(f"the answer cannot be read ({reply.get('status')}: {error})") from None
    return dict(answer)


def _is_python(manager: Any) -> bool:
    spec = manager.kernel_spec
    return spec is not None and str(spec.language or "").lower().startswith("python")
