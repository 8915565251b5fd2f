"""``jupyter gpu notices``: what owners are told about their environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from genv_jupyter.api.client import Client
from genv_jupyter.cli.output import shows
from genv_jupyter.errors import BadRequest
from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import Block, Text, Title
from genv_jupyter.kernel.views import PageView, View
from genv_jupyter.model import Environment
from genv_jupyter.notices import Notice

NOTHING = "There is nothing to tell."
ALL = "all"


@click.command()
@click.option(
    "--dismiss",
    "which",
    metavar="ID",
    help="Show this one no more: its id or the beginning of it ('all': all of them).",
)
@shows
def notices(which: str | None) -> tuple[Any, View]:
    """What is wrong with what you hold, and what will be done."""
    client = Client()
    found = client.notices()
    if which is not None:
        for notice in _chosen(found, which):
            client.dismiss(notice.id)
        found = client.notices()
    names = {it.id: it for it in client.environments()} if found else {}
    return found, PageView(page(found, names))


def page(found: Sequence[Notice], environments: dict[str, Environment]) -> list[Block]:
    """Return the page: each notice with whose environment it is about, since and until when."""
    if not found:
        return [Text(NOTHING)]
    blocks: list[Block] = [Title("1 notice" if len(found) == 1 else f"{len(found)} notices")]
    for notice in found:
        about = environments.get(notice.environment or "")
        name = "" if about is None else about.name or about.id[:8]
        until = "" if notice.until is None else f", until {notice.until.astimezone():%H:%M:%S}"
        head = f"{name}: {notice.message}" if name else notice.message
        blocks.append(Text(head, "plain" if notice.level == "info" else "warn"))
        if notice.hint:
            blocks.append(Text(notice.hint, "plain", 2))
        said = f"{notice.kind.replace('_', ' ')}, since {words.since(notice.since)}{until}"
        blocks.append(Text(f"{said}, {notice.id[:8]}", "dim", 2))
    return blocks


def _chosen(found: Sequence[Notice], which: str) -> list[Notice]:
    """Return those that are to be dismissed.

    Raises
    ------
    BadRequest
        None, or several, begin like that.
    """
    if which == ALL:
        return list(found)
    chosen = [it for it in found if which and it.id.startswith(which)]
    if len(chosen) != 1:
        said = "Several notices begin" if chosen else "No notice begins"
        raise BadRequest(
            f"{said} with {which[:64]!r}.", hint="`jupyter gpu notices` shows them with their ids."
        )
    return chosen
