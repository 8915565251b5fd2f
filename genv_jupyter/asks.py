"""Asking those who hold a device how long still, on the wire as all of ``model`` is."""

from __future__ import annotations

from msgspec import Struct

from genv_jupyter.model import DeviceGrant, Request


class Ask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST environments/{id}/ask``.

    ``message`` is what the holders read, and ``request`` what it is about: by default what the
    environment waits for, else a whole device.
    """

    message: str | None = None
    request: Request | None = None


class Asked(Struct, frozen=True, kw_only=True):
    """Who was asked: the grants that are in the way of what is needed."""

    holders: tuple[DeviceGrant, ...]


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST notices/{id}/answer``: in how many ``minutes``, or a ``message``, or both."""

    minutes: int | None = None
    message: str | None = None
