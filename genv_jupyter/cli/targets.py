"""Which environment or device somebody means, and what a shell may complete it to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem

from genv_jupyter.api.client import Client
from genv_jupyter.errors import BadRequest, GpuError
from genv_jupyter.isolation import processes
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.kernel import words
from genv_jupyter.model import Environment

_COMPLETION_SECONDS = 2.0


def find(client: Client, wanted: str | None) -> Environment:
    """Return the environment of an id, the beginning of one, a name or a notebook.

    Without any of them the one that this process was started in.

    Raises
    ------
    BadRequest
        It may be several, or none was named where there is none around.
    UnknownEnvironment
        There is none of that name.
    """
    wanted = wanted or os.environ.get(MARKER)
    if not wanted:
        raise BadRequest(
            "Which environment?",
            hint="Say --kernel with an id, a name or a notebook; `jupyter gpu envs` lists them.",
        )
    every = client.environments()
    for fits in (_is, _is_called, _begins):
        found = [environment for environment in every if fits(environment, wanted)]
        if len(found) > 1:
            found = [it for it in found if _lives(it)] or found
        if len(found) > 1:
            names = ", ".join(f"{words.label(it)} ({it.id[:8]})" for it in found[:5])
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise BadRequest(
                f"{wanted!r} may be any of {len(found)}: {names}{more}.", hint="Say the id."
            )
        if found:
            return found[0]
    return client.environment(wanted)  # which knows best how to say no


def _lives(environment: Environment) -> bool:
    """Say whether a process is there still; that one has ended the broker sees a second later."""
    return environment.pid is None or processes.start_of(environment.pid) is not None


def _is(environment: Environment, wanted: str) -> bool:
    return environment.id == wanted


def _is_called(environment: Environment, wanted: str) -> bool:
    path = environment.path or ""
    file = path.rsplit("/", 1)[-1]
    names = {environment.name, path, file, file.removesuffix(".ipynb")}
    return wanted.removeprefix("./") in names


def _begins(environment: Environment, wanted: str) -> bool:
    return environment.id.startswith(wanted)


def environment_option(**more: Any) -> Callable[[Any], Any]:
    """Return the option that names an environment."""
    return click.option(
        "-k",
        "-e",
        "--kernel",
        "--environment",
        "environment",
        metavar="ENV",
        shell_complete=complete_environments,
        **more,
    )


def device_option(**more: Any) -> Callable[[Any], Any]:
    """Return the option that names a device."""
    return click.option("-d", "--device", metavar="GPU", shell_complete=complete_devices, **more)


def complete_environments(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return names and ids of environments."""
    return [item for item in _environments() if item.value.startswith(incomplete)]


def complete_devices(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return indices and UUIDs of devices."""
    return [item for item in _devices() if item.value.startswith(incomplete)]


def _environments() -> Iterator[CompletionItem]:
    try:
        for it in _client().environments():
            about = f"{words.label(it)}, {it.state}"
            yield CompletionItem(it.id[:8], help=about)
            if it.name and it.name.isprintable():
                yield CompletionItem(it.name, help=f"{it.id[:8]}, {it.state}")
    except GpuError:
        return  # there is nobody to ask, and a key press is no place to say so


def _devices() -> Iterator[CompletionItem]:
    try:
        for device in _client().devices():
            about = f"{words.device_label(device)}, {words.free(device)}"
            if device.index is not None:
                yield CompletionItem(str(device.index), help=about)
            yield CompletionItem(words.short(device.uuid), help=about)
    except GpuError:
        return


def _client() -> Client:
    """Return a client that starts no broker: a key press must not."""
    return Client(start=False, timeout=_COMPLETION_SECONDS)
