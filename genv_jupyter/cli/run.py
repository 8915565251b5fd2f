"""``jupyter gpu run`` and ``jupyter gpu shell``: an environment for one program.

This very process asks for the devices, and then becomes the program (``exec``). So there is nothing
in between: signals, job control, the terminal, the exit status and the standard streams are the
program's own, the environment ends with its process however that ends, and nothing of ours can be
killed separately.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from click.shell_completion import CompletionItem
from msgspec import Struct

from genv_jupyter.api.client import Client
from genv_jupyter.cli.looking import asked as asked_in
from genv_jupyter.cli.output import NOT_EXECUTABLE, NOT_FOUND, NOT_STARTED, WAIT_OVER, fail, say
from genv_jupyter.cli.requests import amount_options, request_from
from genv_jupyter.cli.waiting import WaitOver, until_room
from genv_jupyter.errors import GpuError
from genv_jupyter.isolation import caps, inherited, live
from genv_jupyter.kernel import project, words
from genv_jupyter.model import (
    Environment,
    EnvironmentKind,
    EnvironmentPatch,
    NewEnvironment,
    Request,
)
from genv_jupyter.units import parse_duration

FOREVER = "for ever"
_FILE = re.compile(r"\w[\w-]*[./][\w./-]*|[./][\w./-]+")
_DASHED = "genv_jupyter.dashed"
"""Set in a context's meta once ``--`` has been typed."""

_DASHES = "Put -- before the program: jupyter gpu run 0.5 -- python train.py"


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
        try:
            rest = super().parse_args(ctx, _with_wait(own))
        except click.UsageError as error:
            raise NotUnderstood(_DASHES if missing else error.message, ctx) from None
        if not ctx.resilient_parsing:
            if missing:
                raise NotUnderstood(_DASHES, ctx)
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


class Launch(Struct, kw_only=True):
    """One program on its way: what it is, what it asks for, and how long it may wait."""

    kind: EnvironmentKind
    program: Sequence[str]
    request: Request
    wait: float | None
    waits: bool
    quiet: bool


def _with_wait(words_: list[str]) -> list[str]:
    """Read ``--wait`` alone as for ever, and ``--wait 30m`` as ``--wait=30m``."""
    found: list[str] = []
    left = list(words_)
    while left:
        word = left.pop(0)
        if word == "--wait":
            timed = bool(left) and left[0][:1].isdigit() and left[0][-1:].isalpha()
            word = f"--wait={left.pop(0) if timed else FOREVER}"
        found.append(word)
    return found


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
        click.option("--save", is_flag=True, help="Keep what is asked for in genv.toml."),
        click.option(
            "--wait",
            metavar="[TIME]",
            help="Wait until there is room, for ever or for a TIME such as 30m.",
        ),
    ):
        command = option(command)
    return amount_options(command)


@click.command(cls=Launcher, options_metavar="[SHARE] [OPTIONS] -- PROGRAM [ARGUMENTS]...")
@_options
def run(program: list[str], **asked: Any) -> None:
    """Run a program with GPUs of its own, given back when it ends.

    \b
      jupyter gpu run 0.5 -- python train.py
      jupyter gpu run --gpus 1 --memory 8G --name train -- python train.py
      jupyter gpu run 1 --wait=30m -- papermill in.ipynb out.ipynb

    Without an amount: what genv.toml says, else one whole GPU.
    """
    _start("command", program, _name_of(program), asked)


@click.command(cls=ShellLauncher, options_metavar="[SHARE] [OPTIONS]")
@_options
def shell(program: None, **asked: Any) -> None:
    """Start a shell with GPUs, given back when you leave it.

    What is typed there sees them.

    Without an amount: what genv.toml says, else one whole GPU.
    """
    path = os.environ.get("SHELL") or pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    name = Path(path).name
    with contextlib.suppress(OSError):  # no terminal behind it
        name += f" on {os.ttyname(0).removeprefix('/dev/')}"
    _start("shell", [path], name, asked)


def _name_of(program: Sequence[str]) -> str:
    """Return what others see: the program and the file it runs, but no arguments."""
    words_ = [Path(program[0]).name]
    files = (word for word in program[1:] if _FILE.fullmatch(word))
    words_ += [Path(word).name for word in files if not word.replace(".", "").isdigit()][:1]
    return " ".join(words_)


def _start(kind: EnvironmentKind, program: Sequence[str], name: str, asked: dict[str, Any]) -> None:
    wait, save, quiet = asked.pop("wait"), asked.pop("save"), asked.pop("quiet")
    if shutil.which(program[0]) is None:
        there = os.sep in program[0] and Path(program[0]).exists()
        say(f"Error: {program[0]} {'cannot be executed' if there else 'was not found'}.")
        raise SystemExit(NOT_EXECUTABLE if there else NOT_FOUND)
    try:
        typed = request_from(asked)
        ours = project.here()
        request = project.filled(typed, ours)
        if save:
            path = project.save(request, ours)
            say(f"Saved in {path}.")
        elif ours is not None and not quiet:
            say(f"{ours.path}: {asked_in(ours)}.")
        launch = Launch(
            kind=kind,
            program=program,
            request=msgspec.structs.replace(request, name=request.name or name[:60]),
            wait=None if wait in (None, FOREVER) else parse_duration(wait),
            waits=wait is not None,
            quiet=quiet,
        )
        _become(launch)
    except WaitOver as error:
        fail(error, WAIT_OVER)
    except GpuError as error:
        fail(error, NOT_STARTED)
    except KeyboardInterrupt:
        say("\nNothing was started.")
        # As any program that Ctrl-C has ended: a script around it can tell.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _become(launch: Launch) -> None:
    """Attach to this process, and turn it into the program."""
    client = Client()
    pool = inherited.pool()
    new = NewEnvironment(kind=launch.kind, pid=os.getpid(), name=launch.request.name, pool=pool)
    made = client.create(new)
    environment = _attached(client, made, launch)
    done = live.apply_environ(environment.environ or {})
    _limit(launch.program[0])
    os.environ[inherited.COMMAND] = inherited.this_process()
    os.environ.pop(inherited.POOL, None)
    if pool is not None:
        os.environ[inherited.POOL] = pool
    seen = {name: done[name] for name in ("applied", "cuda", "revision", "visible")}
    client.patch(environment.id, EnvironmentPatch(**seen))
    if not launch.quiet:
        say(_given(client, environment, launch))
    try:
        replace_process(launch.program)
    except OSError as error:  # the environment ends with this process
        say(f"Error: {launch.program[0]} cannot be executed: {error.strerror}.")
        raise SystemExit(NOT_EXECUTABLE) from None


def _attached(client: Client, made: Environment, launch: Launch) -> Environment:
    def attempt() -> Environment:
        return client.attach(made.id, launch.request, cuda="not_initialized")

    if not launch.waits:
        return attempt()
    tell = (lambda text: None) if launch.quiet else say
    return until_room(client, attempt, launch.wait, tell)


def replace_process(program: Sequence[str]) -> NoReturn:
    """Become a program; what Python has ignored for itself is as it was again.

    Raises
    ------
    OSError
        It cannot be executed.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program[0], list(program))
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without its first line: shells and env run those too.
    os.execv("/bin/sh", ["sh", shutil.which(program[0]) or program[0], *program[1:]])


def _limit(program: str) -> None:
    """Tell the frameworks beside the program what memory they may take; else those of PATH."""
    found = [at for at in (shutil.which(program), shutil.which("python3")) if at is not None]
    caps.settle(os.environ, caps.installed([path for at in found for path in caps.beside(at)]))


def _given(client: Client, environment: Environment, launch: Launch) -> str:
    """Say what the program gets."""
    found = client.devices()
    by_uuid = {device.uuid: device for device in found}
    given = "; ".join(
        f"{words.device_label(by_uuid.get(grant.device), grant.device)}: {words.amount(grant)}"
        for grant in environment.grants
    )
    mark = words.mark(found)
    until = ", until you leave this shell" if launch.kind == "shell" else ""
    who = f"for {environment.name} (environment {environment.id[:8]})"
    return f"{given}, {who}{until}. {mark}".rstrip()
