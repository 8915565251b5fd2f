"""What is asked for on behalf of a user before their Jupyter server starts."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from genv_jupyter.model import Request

RESERVATION = "GENV_JUPYTER_RESERVATION"
"""The variable in which a server is told the id of what was reserved for it."""

Realm = Literal["local", "hub"]


class NewReservation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST reservations``: devices for a Jupyter server that is about to start.

    ``user`` is the name of its owner: of an account of the host (``realm`` is ``local``), or of a
    JupyterHub (``hub``); left out, what the caller is. ``groups`` are the owner's, as the Hub has
    them. ``server`` names the server where the owner may have several; of each there is one
    reservation, and a new one stands in place of it. The server must register ``within`` that time
    (seconds or "5m"), or what was reserved is free again.
    """

    user: str
    request: Request
    server: str = ""
    realm: Realm | None = None
    groups: tuple[str, ...] | None = None
    within: int | str = 300
