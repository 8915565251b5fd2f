"""CUDA's errors 805 to 810, which only a client of MPS gets: what each means, and what helps.

Shown in one block under the traceback, as for memory that is full (``kernel.oom``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import Block, Text, Title
from genv_jupyter.kernel.memory_errors import Failure
from genv_jupyter.kernel.oom import Facts, gather
from genv_jupyter.kernel.views import View
from genv_jupyter.model import DeviceGrant

_RESTART = "Restart the kernel: the grant is kept."


class Meaning(NamedTuple):
    """One error of MPS: how its text or name is known, what it means, what helps."""

    code: int
    sign: str
    means: str
    cure: str


MEANINGS = (
    Meaning(
        805,
        r"MPS_CONNECTION_FAILED|MpsConnectionFailed|failed to connect to the MPS|\b805\b",
        "The MPS daemon of this GPU, or its server, could not be reached.",
        f"{_RESTART} If it comes again, `%gpu attach` what you need with `--no-mps`.",
    ),
    Meaning(
        806,
        r"MPS_RPC_FAILURE|MpsRpcFailure|\bRPC\b|remote procedur|\b806\b",
        "The MPS server of this GPU did not answer: it has ended, or a process that it serves has "
        "crashed. What this kernel had on the GPU is lost.",
        _RESTART,
    ),
    Meaning(
        807,
        r"MPS_SERVER_NOT_READY|MpsServerNotReady|not ready|\b807\b",
        "The MPS server takes no new process now: it is starting, or a process on this GPU has "
        "crashed. After a crash all that were on the GPU then have lost what they had there, and "
        "it takes new ones when the last of them is gone.",
        "Try again in a moment. After a crash, restart every kernel that was on this GPU.",
    ),
    Meaning(
        808,
        r"MPS_MAX_CLIENTS_REACHED|MpsMaxClientsReached|create (?:an )?MPS client|\b808\b",
        "MPS serves no more processes on this GPU: 48 of them (60 from CUDA 13.1 on).",
        "End processes that use it, or ask for another GPU.",
    ),
    Meaning(
        809,
        r"MPS_MAX_CONNECTIONS_REACHED|MpsMaxConnectionsReached|device connections|\b809\b",
        "MPS has no more connections to this GPU.",
        "End processes that use it, or start them with a lower CUDA_DEVICE_MAX_CONNECTIONS.",
    ),
    Meaning(
        810,
        r"MPS_CLIENT_TERMINATED|MpsClientTerminated|terminated|\b810\b",
        "This process was taken off the GPU, as happens before it is ended. CUDA works no more in "
        "it.",
        _RESTART,
    ),
)


def meaning_of(failure: Failure) -> Meaning | None:
    """Return which of the errors it is; ``None`` for one that is not known yet."""
    error = failure.error
    names = " ".join(str(getattr(argument, "name", "")) for argument in _flat(error.args))
    text = f"{names} {error}"
    # Names first: a text may hold any number.
    for part in (0, 1):
        for meaning in MEANINGS:
            signs = meaning.sign.split("|")
            if re.search("|".join(signs[:2] if part == 0 else signs[2:]), text):
                return meaning
    return None


def _flat(arguments: tuple[Any, ...]) -> Iterator[Any]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from argument
        else:
            yield argument


class MpsErrorView(View):
    """What an error of MPS means here, who else is concerned, and what helps."""

    def __init__(self, failure: Failure, facts: Facts) -> None:
        self.failure = failure
        self.facts = facts
        self.meaning = meaning_of(failure)

    def blocks(self) -> list[Block]:
        """Return what it means, what the broker knows, and the cure."""
        meaning, known = self.meaning, self.facts
        which = f", CUDA's error {meaning.code}" if meaning else ""
        title = f"NVIDIA MPS{which} ({self.failure.framework})."
        found: list[Block] = [Title(title, words.mark(known.devices), small=True)]
        if meaning is not None:
            found.append(Text(meaning.means))
        environment = known.environment
        if environment is not None and environment.reason:
            found.append(Text(environment.reason, "dim"))
        if meaning is not None and meaning.code in (806, 807, 808):
            found.extend(Text(f"also there: {_who(it)}", "dim", 2) for it in self._others())
        if known.silent:
            found.append(Text(known.silent, "dim"))
        found.append(Text(meaning.cure if meaning else _RESTART, "warn"))
        return found

    def _others(self) -> Iterator[DeviceGrant]:
        environment = self.facts.environment
        mine = {} if environment is None else {grant.device for grant in environment.grants}
        for device in self.facts.devices:
            if environment is not None and device.uuid in mine:
                yield from (it for it in device.grants if it.environment != environment.id)


def _who(grant: DeviceGrant) -> str:
    return f"{words.holder(grant)} ({grant.user}), since {words.since(grant.since)}"


def show(shell: Any, failure: Failure) -> None:
    """Show the block in the output of the cell that has just ended."""
    from IPython.display import display

    view = MpsErrorView(failure, gather(shell))
    bundle = {"text/plain": repr(view), "text/html": view._repr_html_()}
    display(bundle, raw=True)  # type: ignore[no-untyped-call]
