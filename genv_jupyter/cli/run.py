"""``jupyter gpu run`` and ``jupyter gpu shell``: an environment for one program.

This very process asks for the devices, and then becomes the program (``launching``): so the
environment ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from msgspec import Struct

from genv_jupyter.api.client import Client
from genv_jupyter.cli.launching import (
    Launcher,
    ShellLauncher,
    become,
    check_program,
    interrupted,
)
from genv_jupyter.cli.looking import asked as asked_in
from genv_jupyter.cli.output import NOT_STARTED, WAIT_OVER, fail, say
from genv_jupyter.cli.requests import amount_options, request_from
from genv_jupyter.errors import GpuError
from genv_jupyter.isolation import caps, inherited, live
from genv_jupyter.kernel import project, waiting, words
from genv_jupyter.model import (
    Environment,
    EnvironmentPatch,
    LaunchKind,
    NewEnvironment,
    Request,
)

_FILE = re.compile(r"\w[\w-]*[./][\w./-]*|[./][\w./-]+")


class Launch(Struct, kw_only=True):
    """One program on its way: what it is, and what it asks for."""

    kind: LaunchKind
    program: Sequence[str]
    request: Request
    quiet: bool


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
        click.option("--save", is_flag=True, help="Keep what is asked for in genv.toml."),
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


def _start(kind: LaunchKind, program: Sequence[str], name: str, asked: dict[str, Any]) -> None:
    save, quiet = asked.pop("save"), asked.pop("quiet")
    check_program(program[0])
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
            quiet=quiet,
        )
        _launch(launch)
    except waiting.WaitOver as error:
        fail(error, WAIT_OVER)
    except GpuError as error:
        fail(error, NOT_STARTED)
    except (KeyboardInterrupt, waiting.LeftQueue):
        interrupted()


def _launch(launch: Launch) -> NoReturn:
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
    become(launch.program)


def _attached(client: Client, made: Environment, launch: Launch) -> Environment:
    def attempt() -> Environment:
        return client.attach(made.id, launch.request, cuda="not_initialized")

    tell = (lambda text: None) if launch.quiet else say
    return waiting.attach(client, made.id, launch.request, attempt, tell)


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
