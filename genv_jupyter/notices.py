"""What the owner of an environment is told by itself: what is wrong, what will be done, what was.

On the wire as all of ``model`` is. A notice stands until what it tells of is over, or its owner
has dismissed it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from genv_jupyter.units import Time

NoticeKind = Literal[
    "cap",
    "foreign_device",
    "outside",
    "idle",
    "lease",
    "quota",
    "contended",
    "lost",
    "maintenance",
    "ask",
    "queue",
    "ended",
    "leftover",
    "mps",
]
NoticeLevel = Literal["info", "warning", "error"]
NoticeAction = Literal["keep", "extend", "release", "restart", "dismiss"]


RuleMode = Literal["off", "warn", "act"]


class RuleInForce(Struct, frozen=True, kw_only=True):
    """One of the rules that a broker keeps to: what it is about, and what it does.

    ``dry_run`` says that it only records what it would do. ``summary`` is a sentence.
    """

    rule: NoticeKind
    mode: RuleMode
    dry_run: bool
    summary: str


class Notice(Struct, frozen=True, kw_only=True):
    """What the owner of an environment is told, and what they can do about it.

    ``environment`` is ``None`` where it is about no one environment. ``until`` is when something
    will be done, or is over; ``message`` says what. ``actions`` are the buttons that make sense:
    ``keep`` and ``extend`` are ``PATCH environments/{id}``, ``release`` its ``DELETE``, ``restart``
    its ``POST …/restart``, and ``dismiss`` is ``DELETE notices/{id}``.
    """

    id: str
    environment: str | None
    user: str
    kind: NoticeKind
    level: NoticeLevel
    message: str
    hint: str
    since: Time
    until: Time | None
    actions: tuple[NoticeAction, ...]
