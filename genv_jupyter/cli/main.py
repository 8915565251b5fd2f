"""``jupyter gpu``: devices, environments, attach and release from a terminal."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from genv_jupyter import __version__
from genv_jupyter.api.client import Client
from genv_jupyter.errors import BadRequest, GpuError
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.kernel import doctor, words
from genv_jupyter.kernel.document import Text, Title
from genv_jupyter.kernel.parsing import request_of
from genv_jupyter.kernel.views import DevicesView, EnvironmentsView, PageView, View
from genv_jupyter.model import Environment

Command = TypeVar("Command", bound=Callable[..., Any])


def _as_json(command: Command) -> Command:
    """Give a command ``--json``, and turn every error into one line (or its JSON) and status 1.

    A command returns the facts, how they are shown, and an exit status where it is not 0.
    """

    @click.option("--json", "as_json", is_flag=True, help="Write JSON, as the REST API does.")
    @functools.wraps(command)
    def run(*, as_json: bool, **arguments: Any) -> None:
        try:
            facts, view, *status = command(**arguments)
        except GpuError as error:
            if as_json:
                click.echo(msgspec.json.encode(error.payload()))
            else:
                click.echo(f"Error: {error}", err=True)
            raise SystemExit(1) from None
        click.echo(msgspec.json.encode(facts) if as_json else str(view))
        if any(status):
            raise SystemExit(status[0])

    return run  # type: ignore[return-value]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="genv-jupyter")
def main() -> None:
    """GPUs of this host, shared between notebooks and terminals."""


@main.command()
@_as_json
def devices() -> tuple[Any, View]:
    """Every GPU: how full, and who holds how much since when."""
    client = Client()
    found = client.devices()
    return found, DevicesView(found, client.health(), mine=os.environ.get(MARKER))


@main.command()
@_as_json
def envs() -> tuple[Any, View]:
    """Every environment: notebooks, terminals, commands."""
    client = Client()
    found = client.environments()
    return found, EnvironmentsView(found, client.devices(), mine=os.environ.get(MARKER))


@main.command()
@click.option("-e", "--environment", help="Only this one: its id, or the beginning of it.")
@_as_json
def status(environment: str | None) -> tuple[Any, View]:
    """What one environment has, or a line for each GPU."""
    client = Client()
    if environment or os.environ.get(MARKER):
        found = _find(client, environment)
        return found, _shown(client, found, "")
    every = client.devices()
    lines = [f"{words.device_label(device)}: {words.free(device)}" for device in every]
    trouble = client.health().driver
    if trouble:
        lines.append(trouble)
    elif not every:
        lines.append("There is no GPU here; `jupyter gpu doctor` says why.")
    return every, PageView([Title("GPUs", words.mark(every)), *(Text(line) for line in lines)])


@main.command()
@click.argument("share", required=False)
@click.option("-e", "--environment", help="Whose: an id, or the beginning of one (see `envs`).")
@click.option("-m", "--memory", help="Memory on one shared GPU, such as 4G or 4GiB.")
@click.option("-d", "--device", multiple=True, help="This GPU: index, UUID, or its beginning.")
@click.option("-n", "--name", help="A name for others to see.")
@click.option("-p", "--processes", type=int, help="How many processes will use it.")
@click.option("--restart", is_flag=True, help="Restart the kernel to make it see the GPU.")
@_as_json
def attach(environment: str | None, restart: bool, **asked: Any) -> tuple[Any, View]:
    """Attach SHARE (0.5, 1, 2 …) to a running kernel."""
    client = Client()
    request = request_of(asked)
    target = _find(client, environment)
    found = client.attach(target.id, request, restart=restart)
    if restart and found.applied != "live":
        found = client.restart(found.id)
    return found, _shown(client, found, "Attached.")


@main.command()
@click.option("-e", "--environment", help="Whose: an id, or the beginning of one (see `envs`).")
@click.option("-d", "--device", help="Only the one of this UUID.")
@_as_json
def release(environment: str | None, device: str | None) -> tuple[Any, View]:
    """Give back what an environment has."""
    client = Client()
    found = client.detach(_find(client, environment).id, device=device)
    return found, _shown(client, found, "Released." if not found.grants else "Being released.")


@main.command("doctor")
@_as_json
def doctor_command() -> tuple[Any, View]:
    """Driver, broker, and how strong limits are on this host."""
    client = Client()
    health = client.health()
    found = client.devices()
    return health, PageView(
        [
            Title("GPU doctor", words.mark(found)),
            *doctor.driver_part(health, found),
            *doctor.broker_part(health),
            *doctor.limits_part(health, found),
        ]
    )


@main.command()
@_as_json
def health() -> tuple[Any, View, int]:
    """Whether broker and driver are well; status 2 when the driver has trouble."""
    found = Client().health()
    said = f"{found.devices} GPUs, {found.environments} environments"
    blocks = [Text(f"Broker {found.version}, pid {found.pid}: {said}.")]
    if found.driver:
        blocks.append(Text(found.driver, "warn"))
    return found, PageView(blocks), 2 if found.driver else 0


def _find(client: Client, environment: str | None) -> Environment:
    """Return the environment of an id or its beginning; without one, the one we are in."""
    wanted = environment or os.environ.get(MARKER)
    if not wanted:
        raise BadRequest(
            "Which environment?",
            hint="Say --environment ID; `jupyter gpu envs --json` has the ids.",
        )
    found = [it for it in client.environments() if it.id.startswith(wanted) or it.name == wanted]
    if len(found) > 1:
        raise BadRequest(f"{wanted!r} may be any of {len(found)} environments.", hint="Say more.")
    return found[0] if found else client.environment(wanted)


def _shown(client: Client, environment: Environment, head: str) -> View:
    view = EnvironmentsView([environment], client.devices())
    blocks = [Title(head)] if head else []
    said = [environment.reason] if environment.reason else []
    if environment.grants and environment.applied not in (None, "live"):
        said.append(f"In the process: {words.APPLIED[environment.applied]}.")
    return PageView([*blocks, *view.blocks()[1:], *(Text(line, "warn") for line in said)])
