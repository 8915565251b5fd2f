"""The commands that change what a running environment has: ``attach``, ``release``."""

from __future__ import annotations

from typing import Any

import click

from genv_jupyter.api.client import Client
from genv_jupyter.cli.launching import interrupted
from genv_jupyter.cli.looking import shown
from genv_jupyter.cli.output import REFUSED, WAIT_OVER, fail, say, shows
from genv_jupyter.cli.requests import amount_options, request_from
from genv_jupyter.cli.targets import device_option, environment_option, find
from genv_jupyter.cli.waiting import until
from genv_jupyter.errors import Conflict
from genv_jupyter.isolation import inherited
from genv_jupyter.kernel import project, waiting
from genv_jupyter.kernel.parsing import with_wait
from genv_jupyter.kernel.views import View
from genv_jupyter.model import Environment

APPLY_SECONDS = 3.0
"""For which an attach is watched until the kernel sees it; it goes on without us."""

RESTART_SECONDS = 60.0


class Waiter(click.Command):
    """A command that may be told to ``--wait``, or to ``--wait 30m``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--wait`` with its time, or without."""
        return super().parse_args(ctx, with_wait(args))


@click.command(cls=Waiter)
@amount_options
@environment_option(help="Whose: an id, its beginning, a name or a notebook.")
@click.option("--restart", is_flag=True, help="Restart the kernel to make it see the GPU.")
@shows
def attach(environment: str | None, restart: bool, **asked: Any) -> tuple[Any, View, int]:
    """Attach SHARE of a GPU (0.5, 1, 2 ...) to a running kernel.

    Without an amount: what it has already, else what genv.toml says, else one GPU.
    """
    client = Client()
    request = request_from(asked)
    target = find(client, environment)
    if target.kind == "command" or (target.pid and inherited.is_command(target.pid)):
        verb = "run" if target.kind == "command" else "shell"
        raise Conflict(
            f"A {target.kind} sees what it was started with, and nothing that comes later.",
            hint=f"End it, and start it again: `jupyter gpu {verb} …`.",
        )
    request = project.asked_of(target, request)

    def attempt() -> Environment:
        return client.attach(target.id, request, restart=restart)

    try:
        found = waiting.attach(client, target.id, request, attempt, say)
    except waiting.WaitOver as error:
        fail(error, WAIT_OVER)
    except waiting.LeftQueue as left:
        interrupted("Left the queue." if left.served is None else "It had just come: attached.")
    if restart and found.applied != "live":
        client.restart(found.id)
        return _restarted(client, target)
    found = _watch(client, found.id, _is_told, APPLY_SECONDS)
    return found, shown(client, found, "Attached."), 0


@click.command()
@environment_option(help="Whose: an id, its beginning, a name or a notebook.")
@device_option(help="Only this GPU.")
@shows
def release(environment: str | None, device: str | None) -> tuple[Any, View]:
    """Give back what an environment has."""
    client = Client()
    found = client.detach(find(client, environment).id, device=device)
    if found.state == "draining":
        found = _watch(client, found.id, lambda it: it.state != "draining", APPLY_SECONDS)
    return found, shown(client, found, "Being released." if found.grants else "Released.")


def _restarted(client: Client, before: Environment) -> tuple[Any, View, int]:
    """Wait for the new kernel, and say what came back."""

    def is_back(now: Environment) -> bool:
        return now.pid not in (None, before.pid) or now.kernel_state == "dead"

    found = _watch(client, before.id, is_back, RESTART_SECONDS)
    if found.kernel_state == "dead":
        return found, shown(client, found, "The kernel did not come back."), REFUSED
    if not is_back(found):
        head = f"The kernel has not come back within {RESTART_SECONDS:.0f} s."
        return found, shown(client, found, head), REFUSED
    found = _watch(client, before.id, _is_told, APPLY_SECONDS)
    head = f"Restarted: the kernel is back, as process {found.pid}, with what is attached."
    return found, shown(client, found, head), 0


def _watch(client: Client, environment: str, done: Any, seconds: float) -> Environment:
    return until(client, lambda: client.environment(environment), done, seconds)


def _is_told(environment: Environment) -> bool:
    return environment.applied != "pending"
