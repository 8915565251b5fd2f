"""The token that proves who we are to a broker which serves users of a JupyterHub.

It is sent to a broker that asks for it, and to no other: to a socket of one's own user it would
tell something that is not needed there. Which sockets ask is remembered for this process.
"""

from __future__ import annotations

import os
import re

from genv_jupyter.api import rendezvous
from genv_jupyter.errors import GpuError

VARIABLE = "JUPYTERHUB_API_TOKEN"
"""Set by JupyterHub in every server that it starts, and inherited by its kernels."""
CHALLENGE = {"challenge": "token"}
"""In the details of a refusal: come again with a token."""
_TOKEN = re.compile(r"[!-~]+")
_asking: set[str] = set()


def known() -> str | None:
    """Return what to send to the present broker, as far as is known."""
    return _own() if rendezvous.address() in _asking else None


def asked(error: GpuError) -> bool:
    """Say whether a refusal asks for a token that we have; from now on it is sent.

    Where users of the host are known by their uid nobody needs one: who asks there all the same has
    taken the broker over, and would be whoever we are at the Hub.
    """
    if rendezvous.address() == rendezvous.HOST_SOCKET:
        return False
    if error.details.get("challenge") != CHALLENGE["challenge"] or _own() is None:
        return False
    _asking.add(rendezvous.address())
    return True


def _own() -> str | None:
    token = os.environ.get(VARIABLE, "").strip()
    return token if _TOKEN.fullmatch(token) else None
