"""``jupyter gpu leftovers``: processes that outlived their kernels, and their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from genv_jupyter.api.client import Client
from genv_jupyter.cli.output import shows
from genv_jupyter.errors import BadRequest, UnknownProcess
from genv_jupyter.kernel.remnants import LeftoversView
from genv_jupyter.kernel.views import View
from genv_jupyter.leftovers import Leftover

ALL = "all"


@click.command()
@click.option(
    "--end",
    "which",
    multiple=True,
    metavar="PID",
    help="End this one ('all': all of them). May be given several times.",
)
@shows
def leftovers(which: tuple[str, ...]) -> tuple[Any, View]:
    """Processes that outlived their kernels and still hold a GPU."""
    client = Client()
    found = client.leftovers()
    ended = [client.end_process(left.pid, left.start) for left in _chosen(found, which)]
    said = f"Ending {', '.join(str(left.pid) for left in ended)}." if ended else ""
    if ended:
        found = client.leftovers()
    return found, LeftoversView(found, client.devices(), said)


def _chosen(found: Sequence[Leftover], which: tuple[str, ...]) -> list[Leftover]:
    """Return those that are to be ended.

    Raises
    ------
    BadRequest
        That is no process id.
    UnknownProcess
        It is none of them.
    """
    if ALL in which:
        return list(found)
    by_pid = {left.pid: left for left in found}
    chosen = []
    for text in dict.fromkeys(which):
        if not (text.isascii() and text.isdigit()):
            raise BadRequest(
                f"--end {text[:32]!r} is no process.", hint="Write a pid of the list, or 'all'."
            )
        left = by_pid.get(int(text[:18]))
        if left is None:
            raise UnknownProcess(
                f"Process {text[:18]} is no leftover of a kernel of yours.",
                hint="`jupyter gpu leftovers` lists those there are.",
            )
        chosen.append(left)
    return chosen
