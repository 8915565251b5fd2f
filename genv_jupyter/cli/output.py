"""How every command speaks: a page or JSON on stdout, sentences on stderr, and its exit status."""

from __future__ import annotations

import functools
import json
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from genv_jupyter.errors import BadRequest, GpuError, OutOfRange, Unavailable
from genv_jupyter.kernel.document import WIDTH, printable

Command = TypeVar("Command", bound=Callable[..., Any])

REFUSED, USAGE, UNAVAILABLE = 1, 2, 3
WAIT_OVER, NOT_STARTED, NOT_EXECUTABLE, NOT_FOUND = 124, 125, 126, 127

STATUSES = """\
Exit status: 0 done, 1 refused, 2 not understood, 3 no broker or no working
driver. Of run, shell and turn: the program's own, or 124 the wait is over,
125 not started (refused, not understood, no broker), 126 cannot be executed,
127 not found; 128 + N is what a shell makes of an end by signal N.
"""


def status_of(error: GpuError) -> int:
    """Return the exit status that an error ends a command with."""
    if isinstance(error, BadRequest | OutOfRange):
        return USAGE
    return UNAVAILABLE if isinstance(error, Unavailable) else REFUSED


def say(text: str) -> None:
    """Write a sentence to stderr: one line, or on a terminal as many as it takes."""
    paragraphs = text.splitlines() if sys.stderr.isatty() else [" ".join(text.split())]
    for paragraph in paragraphs:
        lines = [paragraph]
        if sys.stderr.isatty():
            lines = textwrap.wrap(
                paragraph, WIDTH, subsequent_indent="  ", break_on_hyphens=False
            ) or [""]
        for line in lines:
            click.echo(printable(line), err=True)


def fail(error: Exception, status: int) -> NoReturn:
    """Say what an error says, and end."""
    say(f"Error: {error}")
    raise SystemExit(status)


def shows(command: Command) -> Command:
    """Give a command ``--json``, and turn every error into a sentence (or its JSON) and a status.

    A command returns the facts, how they are shown, and an exit status where it is not 0.
    """

    @click.option("--json", "as_json", is_flag=True, help="Write JSON, as the REST API does.")
    @functools.wraps(command)
    def run(*, as_json: bool, **arguments: Any) -> None:
        try:
            facts, view, *status = command(**arguments)
        except GpuError as error:
            if not as_json:
                fail(error, status_of(error))
            click.echo(_json(error.payload()))
            raise SystemExit(status_of(error)) from None
        click.echo(_json(facts) if as_json else str(view))
        if any(status):
            raise SystemExit(status[0])

    return run  # type: ignore[return-value]


def _json(facts: Any) -> str:
    """Write JSON that does nothing to a terminal: names in it may be somebody else's."""
    text = msgspec.json.encode(facts).decode()
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]
