"""The live ledger: devices, servers, environments and grants of this boot, as they are now.

The broker is its only writer and keeps the same rows in memory; nothing here is read again after
``load``. A transaction that returned is there after ``kill -9``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import astuple
from sqlalchemy import Connection, Engine, Table, select

from genv_jupyter.ledger import schema
from genv_jupyter.ledger.rows import (
    DeviceRow,
    EnvironmentRow,
    GrantRow,
    LiveState,
    NoteRow,
    Refused,
    ServerRow,
    TicketRow,
)
from genv_jupyter.ledger.sqlite import open_ledger, unavailable
from genv_jupyter.ledger.statements import Statement, Statements

PRAGMAS = {"journal_mode": "WAL", "synchronous": "NORMAL", "foreign_keys": "ON"}
"""Enough for ``kill -9``; after a power cut the boot is another one, and so is the ledger."""

BEGIN = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "BEGIN"}

Trace = Callable[[str, Any], None]
Row = TypeVar("Row", bound=Struct)


class LiveLedger:
    """Who holds what at this moment, on this host, since it was booted.

    One connection, usable from one thread at a time.

    Parameters
    ----------
    path
        The database file.
    trace
        Called with the text and the parameters of every statement of a transaction, for
        benchmarks that replay them.
    """

    def __init__(self, path: Path, *, trace: Trace | None = None) -> None:
        self.path = path
        self.trace = trace
        self._engine: Engine | None = None
        self._transaction: Transaction | None = None

    def open(self) -> list[str]:
        """Open the ledger, or make it; return sentences that the user should see.

        Raises
        ------
        LedgerNewer
            It was written by a newer version, and has not been touched.
        Unavailable
            It is not ours, or cannot be read or written at present.
        """
        if self._engine is not None:
            raise RuntimeError("the ledger is open already")
        self._engine, notices = open_ledger(self.path, schema.LIVE, PRAGMAS)
        self._transaction = Transaction(self, self._engine)
        return notices

    def close(self) -> None:
        """Close the ledger; closing it again does nothing."""
        engine, self._engine = self._engine, None
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.close()
        if engine is not None:
            engine.dispose()

    def load(self) -> LiveState:
        """Return everything, in one consistent reading."""
        if self._engine is None:
            raise RuntimeError("the ledger is not open")

        with self._engine.begin() as connection:
            return LiveState(
                devices=_rows(connection, schema.devices, DeviceRow),
                servers=_rows(connection, schema.servers, ServerRow),
                environments=_rows(connection, schema.environments, EnvironmentRow),
                grants=_rows(connection, schema.grants, GrantRow),
                tickets=_rows(connection, schema.tickets, TicketRow),
                notes=_rows(connection, schema.notes, NoteRow),
            )

    def transaction(self) -> Transaction:
        """Return a context: what is done inside is committed at its end, or, if it raises, not.

        Raises
        ------
        Refused
            From the methods of the transaction: the database does not allow it.
        Unavailable
            The database cannot be written at present; nothing was changed.
        """
        if self._transaction is None:
            raise RuntimeError("the ledger is not open")
        return self._transaction


class Transaction:
    """Changes that are made together or not at all (see ``LiveLedger.transaction``).

    Every method raises ``Refused`` when the database does not allow the change, and the
    transaction is lost with it: leaving it raises again where the refusal was caught. Grants keep
    their counters: granted memory, exclusive and shared grants on the device, and granted
    compute of each owner on the device, each bounded by a CHECK constraint.
    """

    def __init__(self, ledger: LiveLedger, engine: Engine) -> None:
        self._ledger = ledger
        self._statements = Statements(engine.dialect)
        self._begin = BEGIN[engine.dialect.name]
        self._connection = engine.raw_connection()
        self._cursor = self._connection.cursor()
        self._driver: Any = engine.dialect.loaded_dbapi
        self._open = False
        self._failure: BaseException | None = None

    def __enter__(self) -> Transaction:
        if self._open:
            raise RuntimeError("a transaction is open already")
        self._failure = None
        self._execute(self._begin, ())
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._open = False
        failure = self._failure
        if error is None and failure is None:
            try:
                self._execute("COMMIT", ())
            except BaseException:
                self._connection.rollback()
                raise
            return
        self._connection.rollback()
        if error is None and failure is not None:
            # Somebody caught it: half of a change must not be committed all the same.
            raise failure

    def put_device(self, row: DeviceRow) -> None:
        """Store a device or its new capacities.

        A capacity below what is granted is stored as what is granted: reality must not make
        a write fail. Put the device again when grants have ended.
        """
        self._run(self._statements.put_device, astuple(row))
        self._run(self._statements.put_shares, (row.uuid, row.compute_capacity))

    def put_server(self, row: ServerRow) -> None:
        """Store a server, or replace the one of that id."""
        self._run(self._statements.put_server, astuple(row))

    def drop_server(self, server: str) -> None:
        """Forget a server; its environments stay."""
        self._run(self._statements.drop_server, (server,))

    def put_environment(self, row: EnvironmentRow) -> None:
        """Store an environment, or replace the one of that id."""
        self._run(self._statements.put_environment, astuple(row))

    def drop_environment(self, environment: str) -> None:
        """Forget an environment; refused while it has grants or a place in the queue."""
        self._run(self._statements.drop_environment, (environment,))

    def put_ticket(self, row: TicketRow) -> None:
        """Store a place in the queue of an environment that is stored; it can have one."""
        self._run(self._statements.put_ticket, astuple(row))

    def drop_ticket(self, ticket: str) -> None:
        """Forget a place in the queue."""
        self._run(self._statements.drop_ticket, (ticket,))

    def put_notes(self, environment: str, rows: Iterable[NoteRow]) -> None:
        """Store the notes to an environment in the place of those that it has."""
        self._run(self._statements.drop_notes, (environment,))
        for row in rows:
            self._run(self._statements.add_note, astuple(row))

    def add_grant(self, row: GrantRow) -> None:
        """Store a new grant of an environment and on a device that are stored."""
        self._run(self._statements.add_grant, astuple(row))
        self._count(row.device, row.counted_memory, *_kind(row, 1))
        self._count_compute(row, row.counted_compute)

    def change_grant(self, old: GrantRow, new: GrantRow) -> None:
        """Store ``new`` in the place of ``old``: the same id, device and owner.

        Refused when ``old`` is not what is stored.
        """
        if (old.id, old.device, old.owner) != (new.id, new.device, new.owner):
            raise ValueError("a grant keeps its id, its device and its owner")
        values = (*astuple(new), *_as_it_was(old))
        self._one(self._run(self._statements.change_grant, values), old)
        memory = new.counted_memory - old.counted_memory
        if memory or new.counted_exclusive != old.counted_exclusive:
            left, come = _kind(old, -1), _kind(new, 1)
            self._count(new.device, memory, left[0] + come[0], left[1] + come[1])
        self._count_compute(new, new.counted_compute - old.counted_compute)

    def drop_grant(self, row: GrantRow) -> None:
        """Remove a grant; refused when ``row`` is not what is stored."""
        self._one(self._run(self._statements.drop_grant, _as_it_was(row)), row)
        self._count(row.device, -row.counted_memory, *_kind(row, -1))
        self._count_compute(row, -row.counted_compute)

    def close(self) -> None:
        """Give the connection back; called by the ledger."""
        self._open = False
        self._cursor.close()
        self._connection.close()

    # -- inside ---------------------------------------------------------------------------------

    def _count(self, device: str, memory: int, exclusive: int, shared: int) -> None:
        self._run(self._statements.count_device, (memory, exclusive, shared, device))

    def _count_compute(self, row: GrantRow, compute: int) -> None:
        if compute > 0:
            self._run(self._statements.open_share, (compute, row.owner, row.device))
        elif compute < 0:
            self._run(self._statements.count_share, (compute, row.device, row.owner))

    def _one(self, changed: int, row: GrantRow) -> None:
        if changed != 1:
            self._failure = Refused(
                f"grant {row.id} is not, or no longer, what the caller thinks it is"
            )
            raise self._failure

    def _run(self, statement: Statement, values: Sequence[Any]) -> int:
        """Execute a statement; return how many rows it changed."""
        if not self._open:
            raise RuntimeError("the transaction is over")
        text, bind = statement
        return self._execute(text, values if bind is None else bind(values))

    def _execute(self, text: str, parameters: Any) -> int:
        trace = self._ledger.trace
        if trace is not None:
            trace(text, parameters)
        try:
            self._cursor.execute(text, parameters)
        except self._driver.IntegrityError as error:
            self._failure = Refused(str(error), schema.check_in(str(error)))
            raise self._failure from error
        except self._driver.Error as error:
            self._failure = unavailable(self._ledger.path, error)
            raise self._failure from error
        except BaseException as error:  # a value that the driver cannot write
            self._failure = error
            raise
        return int(self._cursor.rowcount)


def _rows(connection: Connection, table: Table, kind: type[Row]) -> tuple[Row, ...]:
    names = kind.__struct_fields__
    found = connection.execute(select(*(table.c[name] for name in names)))
    return tuple(kind(**dict(zip(names, row, strict=True))) for row in found)


def _as_it_was(row: GrantRow) -> tuple[Any, ...]:
    return (row.id, row.counted_memory, row.counted_compute, row.counted_exclusive)


def _kind(row: GrantRow, number: int) -> tuple[int, int]:
    """Return by how much the numbers of exclusive and of shared grants change."""
    return (number, 0) if row.counted_exclusive else (0, number)
