"""What others see of a user: their name, what they work on, or only that something is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traitlets import Enum
from traitlets.config import Configurable

from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.model import Principal

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

SOMEBODY = "another user"
A_SERVER = "a server"


class Discretion(Configurable):
    """What others see of a user. Owners see all of their own, and administrators everything."""

    others_see = Enum(
        ["path", "name", "taken"],
        "name",
        help="What users see of each other's environments: the user's name, and what they called "
        "it, with the path of the notebook ('path'); the user's name alone ('name'); only that "
        "something is taken ('taken').",
    ).tag(config=True)


class Seen(NamedTuple):
    """What somebody sees of an environment."""

    user: str
    name: str | None
    path: str | None
    all: bool


def seen(core: Core, row: EnvironmentRow, viewer: Principal | None) -> Seen:
    """Return what somebody may see of an environment; ``None`` sees everything."""
    name = label_of(row)
    if viewer is None or viewer.admin or viewer.key == row.owner:
        return Seen(row.user, name, row.path, True)
    level = core.config.of(Discretion).others_see
    if level == "path":
        return Seen(row.user, name, row.path, True)
    kept = A_SERVER if row.kind == "server" else None
    return Seen(row.user if level == "name" else SOMEBODY, kept, None, False)


def hides_users(core: Core) -> bool:
    """Say whether users do not even see each other's names."""
    return bool(core.config.of(Discretion).others_see == "taken")


def owner_of(row: EnvironmentRow) -> Principal:
    """Return the owner of an environment, as one who sees no more than their own."""
    realm, _, name = row.owner.partition(":")
    return Principal(realm="hub" if realm == "hub" else "local", id=name, name=row.user)


def label_of(row: EnvironmentRow) -> str | None:
    """Return what people call this environment: its name, or the notebook's."""
    if row.name:
        return row.name
    return row.path.rsplit("/", 1)[-1] if row.path else None
