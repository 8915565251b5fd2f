"""Who clicks in a Jupyter server: the owner is not named, nor is one without a name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from genv_jupyter.api.connection import Clicks
from genv_jupyter.server.actors import clicks


def handler(username: str | None, **login: Any) -> Any:
    user = None if username is None else SimpleNamespace(username=username)
    return SimpleNamespace(current_user=user, identity_provider=SimpleNamespace(**login))


@pytest.mark.parametrize(
    ("username", "found"),
    [
        (None, None),
        ("", None),
        ("0123456789abcdef0123456789abcdef", None),  # as Jupyter names whoever has its token
        ("ann", None),
        ("bob", Clicks("bob")),
    ],
)
def test_somebody_else_with_a_name(
    username: str | None, found: Clicks | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "ann")
    assert clicks(handler(username)) == found


def test_a_visitor_of_a_hub_comes_with_their_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "ann")
    login = SimpleNamespace(get_token=lambda _: "theirs")
    assert clicks(handler("bob", hub_auth=login)) == Clicks("bob", "theirs")
    assert clicks(handler("ann", hub_auth=login)) is None
