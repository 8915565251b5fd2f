"""``jupyter gpu audit``: who asked the host's broker for what, and what came of it."""

from __future__ import annotations

from typing import Any

import click

from genv_jupyter.api.client import Client
from genv_jupyter.cli.output import shows
from genv_jupyter.kernel.document import Block, Table, Text, Title
from genv_jupyter.kernel.views import PageView, View
from genv_jupyter.model import AuditEntry


@click.command()
@click.argument("search", required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@shows
def audit(search: str | None, limit: int) -> tuple[Any, View]:
    """Who asked for what, and what came of it (for administrators).

    The newest first; with SEARCH those in which that occurs.
    """
    found = Client().audit(search, limit)
    if not found:
        return found, PageView([Text("Nothing is written down.")])
    rows = [
        (
            f"{it.at.astimezone():%Y-%m-%d %H:%M:%S}",
            _who(it),
            f"{it.action} {it.target}",
            str(it.status),
            it.said or "",
        )
        for it in found
    ]
    page: list[Block] = [
        Title("Audit log"),
        Table(("when", "who", "did", "status", "why"), tuple(rows)),
    ]
    return found, PageView(page)


def _who(entry: AuditEntry) -> str:
    """Name who it was; somebody in another's Jupyter server acts on the account of its owner."""
    if entry.owner is not None:
        return f"{entry.name} for {entry.owner}"
    return entry.name if entry.claimed is None else f"{entry.name} (says: {entry.claimed})"
