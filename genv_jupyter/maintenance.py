"""Devices that are drained for maintenance: nobody gets anything new there.

On the wire as all of ``model`` is.
"""

from __future__ import annotations

from msgspec import Struct

from genv_jupyter.units import Time


class Maintenance(Struct, frozen=True, kw_only=True):
    """Since when a device is under maintenance, by whom, and why (may be empty)."""

    since: Time
    by: str
    reason: str


class DevicePatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``PATCH devices/{device}``: drain a device, or put it back.

    ``reason`` is told to everybody who would like to have the device.
    """

    maintenance: bool
    reason: str = ""


def words(found: Maintenance) -> str:
    """Say it as part of a sentence: ``under maintenance since 2026-01-31 09:30 by ann: a fan``."""
    said = f"under maintenance since {found.since.astimezone():%Y-%m-%d %H:%M} by {found.by}"
    return f"{said}: {found.reason}" if found.reason else said
