"""``jupyter gpu drain`` and ``undrain``: devices under maintenance."""

from __future__ import annotations

from typing import Any

import click

from genv_jupyter.api.client import Client
from genv_jupyter.cli.output import shows
from genv_jupyter.kernel.views import DevicesView, View
from genv_jupyter.maintenance import DevicePatch


@click.command()
@click.argument("device")
@click.option("--reason", default="", metavar="TEXT", help="Told to those who would like it.")
@shows
def drain(device: str, reason: str) -> tuple[Any, View]:
    """Drain DEVICE for maintenance (administrators).

    Nobody gets anything new there. Who holds something is told, and keeps it.
    """
    return _patch(device, DevicePatch(maintenance=True, reason=reason))


@click.command()
@click.argument("device")
@shows
def undrain(device: str) -> tuple[Any, View]:
    """Put DEVICE back after its maintenance."""
    return _patch(device, DevicePatch(maintenance=False))


def _patch(device: str, patch: DevicePatch) -> tuple[Any, View]:
    client = Client()
    found = client.patch_device(device, patch)
    return found, DevicesView([found], client.health())
