"""Reserving devices on behalf of a user before their Jupyter server starts.

The owner is the user, whose quota it is on; who asks is a Hub that administers GPUs, and stands in
the audit log.
"""

from __future__ import annotations

import uuid

import msgspec

from genv_jupyter.broker import failpoints, servers
from genv_jupyter.broker.choosing import chosen
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.hub_identity import HubAccess, account_of
from genv_jupyter.broker.quota_rules import administers
from genv_jupyter.broker.release import FRESH
from genv_jupyter.broker.rests import granted, written
from genv_jupyter.demand import demand_of
from genv_jupyter.errors import BadRequest, OutOfRange, UnknownUser
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.model import Principal
from genv_jupyter.reserving import NewReservation
from genv_jupyter.slots import Own
from genv_jupyter.units import parse_duration

LONGEST_NAME = 255
LONGEST = 3600
"""Seconds within which a server has to register, at most."""


def reserve(
    core: Core, principal: Principal, new: NewReservation, owner: Principal
) -> EnvironmentRow:
    """Reserve devices for a server that is about to start, for ``owner_of`` what is asked.

    Raises
    ------
    GpuError
        It is refused, as an attach of the owner's would be; an earlier reservation stands.
    """
    demand = demand_of(new.request)
    row = EnvironmentRow(
        id=str(uuid.uuid4()),
        owner=owner.key,
        user=owner.name,
        kind="server",
        launch=1,
        name=f"server {new.server}".strip(),
        request=msgspec.json.encode(new.request).decode(),
        unattached="all",
        state="reserved",
        cuda="not_initialized",
        deadline=core.steady() + _within(new),
        created=core.clock(),
    )
    before = _same(core, row)
    # As if it drew on the one in whose place it comes: that is no use of somebody else's.
    asker = msgspec.structs.replace(row, reservation=None if before is None else before.id)
    core.refresh(FRESH)
    slots = servers.slots_for(core, asker)
    core.quotas.admit(asker, demand)
    placed = chosen(core, asker, demand, slots)
    core.quotas.confirm(asker, placed)
    row = msgspec.structs.replace(row, entitled=written(placed))
    with core.books.change() as change:
        if before is not None:
            servers.drop(core, change, before)
        change.put_environment(row)
        for part in placed:
            whole = Own(part.memory, part.compute, part.exclusive)
            change.add_grant(granted(core.books.next_grant(), row, part.device, whole))
        failpoints.reach("inside_server_reserve")
    failpoints.reach("after_server_reserve")
    core.record("Reserved", row, reason=f"by {principal.key}")
    return row


def owner_of(core: Core, principal: Principal, new: NewReservation) -> Principal:
    """Return who is meant: an account of the host, or a user of the Hub, as its socket has them.

    Called without the broker's lock: the host is asked.

    Raises
    ------
    Forbidden
        The caller is no administrator; the host's own accounts are nobody's.
    BadRequest, OutOfRange
        What is asked cannot be reserved.
    UnknownUser, Unavailable
        The host knows no such user, or does not answer.
    """
    administers(core, principal)
    _check(new)
    if core.kind == "user":
        return principal  # there is nobody else
    users = core.identities
    of_hub = (new.realm or principal.realm) == "hub"
    if of_hub and not core.config.of(HubAccess).local_users:
        if new.groups is not None:
            users.learn(Principal(realm="hub", id=new.user, name=new.user, groups=new.groups))
        return users.of(f"hub:{new.user}")
    if of_hub:
        uid = account_of(users, new.user)  # as for a token: the host's own accounts are nobody's
        if new.groups is not None:
            users.learn_groups(uid, new.groups)
        return users.look_up(uid)
    found = users.named(new.user)
    if found.realm != "local":
        raise UnknownUser(
            f"This host knows no user {new.user[:64]!r}.", hint="Say the name of an account."
        )
    return found


def _check(new: NewReservation) -> None:
    if not 0 < len(new.user) <= LONGEST_NAME or len(new.server) > LONGEST_NAME:
        raise BadRequest(
            "A reservation needs the name of a user.",
            hint=f"Names have at most {LONGEST_NAME} characters.",
        )
    request = new.request
    for name, value in (("wait", request.wait), ("duration", request.duration)):
        if value is not None:
            raise BadRequest(
                f"A reservation for a server has no {name}.",
                hint="It is there or not, and lasts as long as the server.",
            )


def _within(new: NewReservation) -> int:
    seconds = parse_duration(new.within)
    if not 1 <= seconds <= LONGEST:
        raise OutOfRange(
            "A server has to register within a second to an hour.",
            hint="Say how long a start may take: the Hub's start_timeout.",
        )
    return seconds


def _same(core: Core, row: EnvironmentRow) -> EnvironmentRow | None:
    """Return the reservation that there is for the same server."""
    for other in core.books.environments.values():
        same = (other.owner, other.name) == (row.owner, row.name)
        if other.kind == "server" and same:
            return other
    return None
