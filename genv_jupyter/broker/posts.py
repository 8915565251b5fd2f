"""Which MPS daemon serves a grant: that of its device and its user."""

from __future__ import annotations

from genv_jupyter.isolation.mps import Post
from genv_jupyter.ledger.rows import GrantRow


def uid_of(owner: str) -> int | None:
    """Return as whom the processes of an owner run, where that is known."""
    realm, _, name = owner.partition(":")
    return int(name) if realm == "local" and name.isdigit() else None


def post_of(grant: GrantRow) -> Post | None:
    """Return the post whose daemon serves a grant under MPS."""
    uid = uid_of(grant.owner) if grant.mps else None
    return None if uid is None else Post(grant.device, uid)
