"""Who clicks in this Jupyter server, where that is not its owner: for the audit log of a host.

They act as the owner, on the owner's quota: whoever may enter a server may do there what its owner
may. The broker is told the name that Jupyter's login knows, and in a server of a JupyterHub also
the visitor's own token, which proves it.
"""

from __future__ import annotations

import os
import re
from typing import Any

from genv_jupyter.api.connection import Clicks

_NOBODY = re.compile(r"[0-9a-f]{32}")
"""What Jupyter calls those who have come with the server's own token: a name made up for each."""


def clicks(handler: Any) -> Clicks | None:
    """Return who has sent a request; ``None`` for the owner, and for one without a name."""
    name = str(getattr(handler.current_user, "username", "") or "")
    if not name or _NOBODY.fullmatch(name) or name == os.environ.get("JUPYTERHUB_USER"):
        return None
    return Clicks(name, _token(handler))


def _token(handler: Any) -> str | None:
    """Return the token that a JupyterHub gave the visitor for this server."""
    login = getattr(handler.identity_provider, "hub_auth", None)
    token = None if login is None else login.get_token(handler)
    return token if isinstance(token, str) and token else None
