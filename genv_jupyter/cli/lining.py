"""``jupyter gpu queue``, ``leave``, ``ask``, ``extend``, ``keep``: to wait, and to have longer."""

from __future__ import annotations

import os
from typing import Any

import click

from genv_jupyter.api.client import Client
from genv_jupyter.asks import Ask
from genv_jupyter.cli.looking import shown
from genv_jupyter.cli.output import shows
from genv_jupyter.cli.targets import environment_option, find
from genv_jupyter.errors import Conflict
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.kernel import waiting
from genv_jupyter.kernel.document import Title
from genv_jupyter.kernel.lining import AskedView, QueueView
from genv_jupyter.kernel.views import PageView, View
from genv_jupyter.model import EnvironmentPatch

_WHOSE = "Whose: an id, its beginning, a name or a notebook."


@click.command()
@shows
def queue() -> tuple[Any, View]:
    """Who waits for GPUs, in which place."""
    client = Client()
    found = client.queue()
    return found, QueueView(found, client.devices(), mine=os.environ.get(MARKER))


@click.command()
@environment_option(help=_WHOSE)
@shows
def leave(environment: str | None) -> tuple[Any, View]:
    """Leave the queue."""
    client = Client()
    target = find(client, environment)
    left = waiting.leave(client, target.id)
    if left is None:
        raise Conflict("It has no place in the queue.", hint="`jupyter gpu queue` lists who waits.")
    found = client.environment(target.id)
    if left.state == "granted":
        return found, shown(client, found, "It had come already, and stays.")
    return found, PageView([Title("Left the queue.")])


@click.command()
@click.argument("time")
@environment_option(help=_WHOSE)
@shows
def extend(time: str, environment: str | None) -> tuple[Any, View]:
    """Have a lease end later by TIME, such as 1h."""
    client = Client()
    target = find(client, environment)
    found = client.patch(target.id, EnvironmentPatch(duration=time))
    return found, shown(client, found, "Extended.")


@click.command()
@environment_option(help=_WHOSE)
@shows
def keep(environment: str | None) -> tuple[Any, View]:
    """Keep what is held though idle: the countdown begins anew."""
    client = Client()
    target = find(client, environment)
    if not target.grants:
        raise Conflict(
            "There is nothing to keep: it holds no GPU.",
            hint="`jupyter gpu envs` lists who holds what.",
        )
    found = client.patch(target.id, EnvironmentPatch(keep=True))
    return found, shown(client, found, "Kept: it counts as idle from now on only.")


@click.command()
@click.argument("message", nargs=-1)
@environment_option(help="For whom: an id, its beginning, a name or a notebook.")
@shows
def ask(message: tuple[str, ...], environment: str | None) -> tuple[Any, View]:
    """Ask the holders of what is needed how long still."""
    client = Client()
    target = find(client, environment)
    found = client.ask(target.id, Ask(message=" ".join(message) or None))
    return found, AskedView(found, client.devices())
