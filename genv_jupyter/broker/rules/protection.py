"""Whom no rule ever touches, whatever it is configured to do."""

from __future__ import annotations

from genv_jupyter.devices.source import ProcessKind
from genv_jupyter.isolation.evidence import DRIVER

FIRST_USER = 1000
"""Uids below are the system's (``UID_MIN`` of every common distribution)."""

NOBODY = 65534


def of_driver(name: str | None) -> bool:
    """Say whether a process is called as the driver's own are: whoever runs it may call it so."""
    return name is not None and name.rsplit("/", 1)[-1].startswith(DRIVER)


def spared(
    *,
    uid: int | None,
    start: int | None,
    kind: ProcessKind,
    name: str | None,
    member: bool,
    me: int | None,
) -> str | None:
    """Say why a process is never acted upon; ``None`` where it may be.

    Parameters
    ----------
    uid, start
        Whose process it is, and its start ticks; ``None`` where it is not to be found here.
    kind, name
        What the driver and the system say it is; ``None`` also for a name that is not believed.
    member
        Whether it belongs to an environment: those are their owner's, whoever that is.
    me
        The uid whose processes may be acted upon there.
    """
    if start is None or uid is None:
        return "it is not to be found here"
    if uid != me:
        return "it belongs to somebody else"
    if kind == "graphics":
        return "it draws on a screen"
    if of_driver(name):
        return "it is a part of the driver"
    if not member and (uid < FIRST_USER or uid == NOBODY):
        return "it is the system's"
    return None
