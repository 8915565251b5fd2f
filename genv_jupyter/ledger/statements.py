"""The SQL of the live ledger, built once.

SQLAlchemy Core writes the statements for the database at hand when the ledger opens; from then
on their text goes to the driver as it is. That costs a third of SQLAlchemy's own ``execute`` for
text, and a ninth of that for Core expressions, which is what an attach consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    Table,
    bindparam,
    case,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from genv_jupyter.ledger.schema import (
    devices,
    environments,
    grants,
    notes,
    servers,
    shares,
    tickets,
)

Bind = Callable[[Sequence[Any]], Any]


class Statement(NamedTuple):
    """The text of a statement, and what makes the driver's parameters of its values."""

    text: str
    bind: Bind | None


def prepared(statement: Any, names: Sequence[str], dialect: Dialect) -> Statement:
    """Compile a statement whose values will come in the order of ``names``."""
    compiled = statement.compile(dialect=dialect)
    if not compiled.positional:
        return Statement(compiled.string, lambda values: dict(zip(names, values, strict=True)))
    order = [names.index(name) for name in compiled.positiontup]
    if order == list(range(len(names))):
        return Statement(compiled.string, None)
    pick = itemgetter(*order)
    return Statement(compiled.string, pick if len(order) > 1 else lambda values: (pick(values),))


def names_of(table: Table) -> list[str]:
    """Return the names of a table's columns, in order."""
    return [column.name for column in table.columns]


class Inserting:
    """Inserts rows into SQLite, many with each statement, their values in the order of ``names``.

    Python's driver gives the interpreter away with every statement, and gets it back when nobody
    else wants it any more: a statement for each row would be a fight over it for each.

    Parameters
    ----------
    most
        Rows of a statement.
    """

    def __init__(self, table: Table, names: Sequence[str], most: int = 64) -> None:
        one = insert(table).values({name: bindparam(name) for name in names})
        text, self._bind = prepared(one, names, sqlite.dialect())
        self._text, _, self._row = text.rpartition("VALUES ")
        self.most = most

    def __call__(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
        """Insert these rows."""
        bound = [row if self._bind is None else self._bind(row) for row in rows]
        for begin in range(0, len(bound), self.most):
            some = bound[begin : begin + self.most]
            text = f"{self._text}VALUES {', '.join([self._row] * len(some))}"
            connection.exec_driver_sql(text, tuple(value for row in some for value in row))


class Statements:
    """Every statement a transaction consists of, compiled for one database.

    The first attribute of a pair changes rows, the second the counters that go with them.
    """

    def __init__(self, dialect: Dialect) -> None:
        def made(statement: Any, *names: str) -> Statement:
            return prepared(statement, names, dialect)

        upsert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect.name]
        self.put_device = made(_put_device(upsert), "uuid", "memory_capacity", "compute_capacity")
        self.put_shares = made(_put_shares(), "device", "compute_capacity")
        self.put_server = made(_replacing(upsert, servers), *names_of(servers))
        self.drop_server = made(_delete(servers.c.id), "id_")
        self.put_environment = made(_replacing(upsert, environments), *names_of(environments))
        self.drop_environment = made(_delete(environments.c.id), "id_")
        self.put_ticket = made(_replacing(upsert, tickets), *names_of(tickets))
        self.drop_ticket = made(_delete(tickets.c.id), "id_")
        self.add_note = made(_insert(notes), *names_of(notes))
        self.drop_notes = made(_delete(notes.c.environment), "id_")
        self.add_grant = made(_insert(grants), *names_of(grants))
        self.change_grant = made(
            _as_it_was(update(grants)).values(
                {name: bindparam(name) for name in names_of(grants) if name not in FIXED}
            ),
            *names_of(grants),
            *WAS,
        )
        self.drop_grant = made(_as_it_was(delete(grants)), *WAS)
        self.count_device = made(_count_device(), "memory", "exclusive", "shared", "uuid_")
        self.open_share = made(_open_share(upsert), "compute", "owner", "device")
        self.count_share = made(_count_share(), "compute", "device_", "owner_")


FIXED = ("id", "device", "owner")
"""What of a grant never changes."""

_COUNTED = ("counted_memory", "counted_compute", "counted_exclusive")
WAS = ("was_id", *(f"was_{name}" for name in _COUNTED))
"""What a grant must still be when it is changed or dropped, or the counters would drift."""


def _as_it_was(statement: Any) -> Any:
    statement = statement.where(grants.c.id == bindparam("was_id"))
    for name in _COUNTED:
        statement = statement.where(grants.c[name] == bindparam(f"was_{name}"))
    return statement


def _insert(table: Table) -> Any:
    return insert(table).values({name: bindparam(name) for name in names_of(table)})


def _delete(key: Column[Any]) -> Any:
    return delete(key.table).where(key == bindparam("id_"))


def _replacing(upsert: Any, table: Table) -> Any:
    """Insert a row, or put it in the place of the one that has its key."""
    statement = upsert(table).values({name: bindparam(name) for name in names_of(table)})
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={c.name: statement.excluded[c.name] for c in table.columns if not c.primary_key},
    )


def _at_least(wanted: Any, granted: Column[Any]) -> Any:
    """A capacity never falls below what is granted: reality must not make a write fail."""
    return case((wanted > granted, wanted), else_=granted)


def _put_device(upsert: Any) -> Any:
    names = ("uuid", "memory_capacity", "compute_capacity")
    statement = upsert(devices).values({name: bindparam(name) for name in names})
    memory, compute = (statement.excluded[name] for name in names[1:])
    return statement.on_conflict_do_update(
        index_elements=[devices.c.uuid],
        set_={
            "memory_capacity": _at_least(memory, devices.c.memory_granted),
            "compute_capacity": compute,
        },
    )


def _put_shares() -> Any:
    wanted = bindparam("compute_capacity", type_=shares.c.compute_capacity.type)
    return (
        update(shares)
        .where(shares.c.device == bindparam("device"))
        .values(compute_capacity=_at_least(wanted, shares.c.compute_granted))
    )


def _count_device() -> Any:
    c = devices.c
    return (
        update(devices)
        .where(c.uuid == bindparam("uuid_"))
        .values(
            memory_granted=c.memory_granted + bindparam("memory"),
            exclusive_grants=c.exclusive_grants + bindparam("exclusive"),
            shared_grants=c.shared_grants + bindparam("shared"),
        )
    )


def _open_share(upsert: Any) -> Any:
    """Count compute that grows; the first of an owner on a device makes the row."""
    first = select(
        devices.c.uuid,
        bindparam("owner", type_=shares.c.owner.type),
        devices.c.compute_capacity,
        bindparam("compute", type_=shares.c.compute_granted.type),
    ).where(devices.c.uuid == bindparam("device"))
    statement = upsert(shares).from_select(names_of(shares), first)
    return statement.on_conflict_do_update(
        index_elements=[shares.c.device, shares.c.owner],
        set_={"compute_granted": shares.c.compute_granted + statement.excluded.compute_granted},
    )


def _count_share() -> Any:
    """Count compute that shrinks (an upsert's new row would be negative, and refused)."""
    return (
        update(shares)
        .where(shares.c.device == bindparam("device_"))
        .where(shares.c.owner == bindparam("owner_"))
        .values(compute_granted=shares.c.compute_granted + bindparam("compute"))
    )
