"""The commands that only look: ``devices``, ``envs``, ``status``, ``doctor``, ``health``."""

from __future__ import annotations

import os
from typing import Any

import click

from genv_jupyter.api.client import Client
from genv_jupyter.cli.output import UNAVAILABLE, shows
from genv_jupyter.cli.targets import environment_option, find
from genv_jupyter.errors import GpuError, UnknownEnvironment
from genv_jupyter.isolation import inherited
from genv_jupyter.isolation.environ import MARKER, VISIBLE
from genv_jupyter.kernel import doctor, project, words
from genv_jupyter.kernel.document import Block, Text, Title, facts
from genv_jupyter.kernel.views import DevicesView, EnvironmentsView, PageView, View
from genv_jupyter.model import BrokerHealth, Device, Environment

WHAT_TO_DO = """\
  jupyter gpu run 0.5 -- python train.py    half of a GPU, for one command
  jupyter gpu shell 0.5                     for all that is typed in a shell"""


@click.command()
@shows
def devices() -> tuple[Any, View]:
    """Every GPU: how full, and who holds how much since when."""
    client = Client()
    found = client.devices()
    return found, DevicesView(found, client.health(), mine=os.environ.get(MARKER))


@click.command()
@shows
def envs() -> tuple[Any, View]:
    """Every environment: notebooks, terminals, commands."""
    client = Client()
    found = client.environments()
    return found, EnvironmentsView(found, client.devices(), mine=os.environ.get(MARKER))


@click.command()
@environment_option(help="Not this one: an id, its beginning, a name or a notebook.")
@shows
def status(environment: str | None) -> tuple[Any, View]:
    """What this terminal has, or another environment.

    As JSON: the environment, or null outside of any.
    """
    client = Client()
    if environment:
        found: Environment | None = find(client, environment)
    else:
        found = _around(client)
    if found is not None:
        return found, shown(client, found, "" if environment else "This is in a GPU environment.")
    return None, PageView(_outside(client.devices(), client.health()))


def _around(client: Client) -> Environment | None:
    """Return the environment that this process was started in, if it is still there."""
    claimed = os.environ.get(MARKER)
    try:
        return client.environment(claimed) if claimed else None
    except UnknownEnvironment:
        return None


def _outside(found: list[Device], health: BrokerHealth) -> list[Block]:
    visible = os.environ.get(VISIBLE)
    said = "Nothing is kept for what is started here."
    if os.environ.get(MARKER):
        said = (
            f"The environment that it was started in ({os.environ[MARKER][:8]}) has ended. {said}"
        )
    elif visible is None:
        said += " It sees every GPU, also those that others hold."
    blocks: list[Block] = [
        Title("This terminal is in no GPU environment.", words.mark(found)),
        Text(said if visible is None else f"{said} {VISIBLE} is {visible!r} here."),
        Text(WHAT_TO_DO, "code"),
    ]
    blocks += [Text(f"{words.device_label(it)}: {words.free(it)}", indent=2) for it in found]
    if health.driver:
        blocks.append(Text(health.driver, "warn"))
    elif not found:
        blocks.append(Text("There is no GPU here; `jupyter gpu doctor` says why."))
    return blocks


def shown(client: Client, environment: Environment, head: str = "") -> View:
    """Return an environment as a page."""
    found = client.devices()
    view = EnvironmentsView([environment], found)
    said = [environment.reason] if environment.reason else []
    if environment.grants and environment.applied not in (None, "live"):
        said.append(f"In the process: {words.APPLIED[environment.applied]}.")
    title = Title(head or "GPU environment", words.mark(found))
    return PageView([title, *view.blocks()[1:], *(Text(line, "warn") for line in said)])


@click.command("doctor")
@shows
def doctor_command() -> tuple[Any, View, int]:
    """Driver, broker, terminal, and how strong limits are here."""
    client = Client()
    health = client.health()
    found = client.devices()
    page = PageView(
        [
            Title("GPU doctor", words.mark(found)),
            *doctor.driver_part(health, found),
            *doctor.broker_part(health),
            *doctor.rules_part(health),
            *_terminal(),
            *doctor.limits_part(health, found, doctor.limits_here(client, health)),
        ]
    )
    return health, page, UNAVAILABLE if health.driver else 0


def _terminal() -> list[Block]:
    visible = os.environ.get(VISIBLE)
    pool = inherited.pool()
    rows = [
        ("environment", os.environ.get(MARKER, "none")),
        (VISIBLE, "not set" if visible is None else repr(visible)),
        ("may use", "all devices" if pool is None else f"what {pool!r} names"),
    ]
    notes: list[str] = []
    try:
        ours = project.find(notes)
        said = "none" if ours is None else f"{ours.path}: {asked(ours)}"
    except GpuError as error:
        said = "cannot be used"
        notes.append(str(error))
    return [
        Title("This terminal", small=True),
        facts([*rows, (project.FILE, said)]),
        *(Text(note, "warn") for note in notes),
    ]


def asked(ours: project.Project) -> str:
    """Say what a project file asks for."""
    more = {key: getattr(ours.request, key) for key in ("name", "processes", "duration")}
    said = [words.asked(ours.request)]
    said += [f"{key} {value}" for key, value in more.items() if value is not None]
    return ", ".join(part for part in said if part) or "nothing"


@click.command()
@shows
def health() -> tuple[Any, View, int]:
    """Whether broker and driver are well; status 3 when one is not."""
    found = Client().health()
    said = f"{found.devices} GPUs, {found.environments} environments"
    blocks: list[Block] = [Text(f"Broker {found.version}, pid {found.pid}: {said}.")]
    if found.driver:
        blocks.append(Text(found.driver, "warn"))
    return found, PageView(blocks), UNAVAILABLE if found.driver else 0
