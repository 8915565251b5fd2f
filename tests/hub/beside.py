"""A Hub with a host daemon beside it, which its servers find as that of their host."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hub.hubs import Hub, Kind, need_hub
from tests.integration.daemons import Daemon, serving

NAMES = ("ann", "bob", "cat", "adm")


@contextlib.contextmanager
def running(
    kind: Kind, names: Mapping[str, str], *lines: str, start: bool = True, **more: Any
) -> Iterator[tuple[Hub, Daemon]]:
    """A running Hub and a running daemon with a socket for the Hub's users.

    The servers find the daemon by the socket that suits them: that of Unix users (``local``), or
    that of the Hub's (``simple``).

    Parameters
    ----------
    kind
        Which spawner; see ``Hub``.
    names
        What the Hub calls the users; those of real Unix users for ``local``.
    lines
        Of the daemon's configuration.
    start
        Start the Hub, too; otherwise whoever asks for it sets up more of it, and does.
    more
        Of the daemon, such as its devices (``spec``).
    """
    need_hub()
    with tempfile.TemporaryDirectory(prefix="genv-jupyter-hub-") as place:
        Path(place).chmod(0o755)
        hub = Hub(Path(place, "hub"), names, kind, {})
        api = f"c.HubAccess.api_url = {hub.api_url!r}"
        with pytest.MonkeyPatch.context() as patch, serving(patch, api, *lines, **more) as daemon:
            found = daemon.socket if kind == "local" else daemon.hub_socket
            hub.environ["GENV_JUPYTER_HOST_SOCKET"] = str(found)
            try:
                if start:
                    hub.start()
                yield hub, daemon
            finally:
                hub.stop()
