"""Becoming a program, for the commands that run one in their own place (``exec``).

So there is nothing in between: signals, job control, the terminal, the exit status and the standard
streams are the program's own, and nothing of ours can be killed separately.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from genv_jupyter.cli.output import NOT_EXECUTABLE, NOT_FOUND, NOT_STARTED, say
from genv_jupyter.kernel.parsing import with_wait

_DASHED = "genv_jupyter.dashed"
"""Set in a context's meta once ``--`` has been typed."""


class NotUnderstood(click.UsageError):
    """A line that cannot be read; the usual status, 2, would be taken for the program's own."""

    exit_code = NOT_STARTED


class Launcher(click.Command):
    """A command whose own words end at ``--``, and that may be told to ``--wait[=TIME]``."""

    takes_program = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at ``--``: what follows is the program's, whatever it looks like."""
        own, program = list(args), None
        if "--" in own:
            at = own.index("--")
            own, program = own[:at], own[at + 1 :]
            ctx.meta[_DASHED] = True
        missing = self.takes_program and not program
        dashes = f"Put -- before the program: {ctx.command_path} -- python train.py"
        try:
            rest = super().parse_args(ctx, with_wait(own))
        except click.UsageError as error:
            raise NotUnderstood(dashes if missing else error.message, ctx) from None
        if not ctx.resilient_parsing:
            if missing:
                raise NotUnderstood(dashes, ctx)
            if program is not None and not self.takes_program:
                raise NotUnderstood("It starts your shell, and takes no program.", ctx)
        ctx.params["program"] = program
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the line of usage: its order is not what click would make of it."""
        return [self.options_metavar or ""]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the program's words as the shell does."""
        if ctx.meta.get(_DASHED):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options; behind ``--`` none is completed."""
        completing = ctx.resilient_parsing and ctx.meta.get(_DASHED)
        return [] if completing else super().get_params(ctx)


class ShellLauncher(Launcher):
    """The same, for the user's shell."""

    takes_program = False


def check_program(program: str) -> None:
    """End with the usual status where a program cannot be run, before anything is waited for."""
    if shutil.which(program) is None:
        there = os.sep in program and Path(program).exists()
        say(f"Error: {program} {'cannot be executed' if there else 'was not found'}.")
        raise SystemExit(NOT_EXECUTABLE if there else NOT_FOUND)


def become(program: Sequence[str]) -> NoReturn:
    """Turn this process into a program; what Python has ignored for itself is as it was again.

    Where that fails it ends with the usual status, and what it holds ends with it.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        try:
            os.execvp(program[0], list(program))
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
        # A script without its first line: shells and env run those too.
        os.execv("/bin/sh", ["sh", shutil.which(program[0]) or program[0], *program[1:]])
    except OSError as error:
        say(f"Error: {program[0]} cannot be executed: {error.strerror}.")
        raise SystemExit(NOT_EXECUTABLE) from None


def interrupted(said: str = "Nothing was started.") -> NoReturn:
    """End as any program that Ctrl-C has ended: a script around it can tell."""
    say(f"\n{said}")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(128 + signal.SIGINT)  # where the signal is blocked
