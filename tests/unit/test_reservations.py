"""What a Hub frees: what it has reserved, by its id, and nothing that has the same name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jupyterhub", reason="NOT TESTED: hooks of a Hub; JupyterHub is not there")

from genv_jupyter.hub import spawner as hooks
from genv_jupyter.hub.reservations import GpuReservations
from genv_jupyter.reserving import RESERVATION


@pytest.mark.parametrize("reservation", [None, "its-id"])
def test_only_what_was_reserved_is_freed(
    monkeypatch: pytest.MonkeyPatch, reservation: str | None
) -> None:
    """ann of the Hub has chosen nothing; the account ann may have a server of the same name."""
    called: list[tuple[str, str]] = []

    async def call(self: Any, method: str, path: str, kind: Any, body: Any = None) -> list[Any]:
        called.append((method, path))
        same = SimpleNamespace(id="another-s", kind="server", user="ann", name="server")
        return [same] if method == "GET" else []

    monkeypatch.setattr(GpuReservations, "_call", call)
    monkeypatch.setattr(hooks, "settings_of", lambda spawner: GpuReservations(users="hub"))
    environment = {} if reservation is None else {RESERVATION: reservation}
    spawner = SimpleNamespace(name="", user=SimpleNamespace(name="ann"), environment=environment)
    asyncio.run(hooks.post_stop_hook(spawner))
    assert called == ([] if reservation is None else [("DELETE", f"environments/{reservation}")])
