"""The records: what happened, kept over reboots.

They live beside the user's Jupyter data, possibly on NFS: a rollback journal instead of a WAL,
and ``synchronous=FULL``. Whoever decides does not wait for them: ``enqueue`` hands a record to a
thread that writes them in batches.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import astuple
from sqlalchemy import Connection, Engine, and_, delete, func, or_, select
from sqlalchemy.exc import DBAPIError

from genv_jupyter.errors import Unavailable
from genv_jupyter.ledger import quotas, schema
from genv_jupyter.ledger import samples as history
from genv_jupyter.ledger.backlog import Backlog
from genv_jupyter.ledger.quotas import AuditRow
from genv_jupyter.ledger.rows import Record
from genv_jupyter.ledger.samples import Cells, Samples
from genv_jupyter.ledger.sqlite import open_ledger, unavailable
from genv_jupyter.ledger.statements import Inserting

__all__ = ["Record", "RecordsLedger"]

PRAGMAS = {"journal_mode": "DELETE", "synchronous": "FULL"}
CLOSE_SECONDS = 5.0
"""For which closing waits until everything is written."""

KEEP = 100_000
"""How many records are kept: some 20 MB."""

WAITING = 10_000
WAITING_SAMPLES = 20_000
"""Samples that may wait for the disk: a quarter of an hour of fifty environments."""

BATCH = 500
GATHER = 0.2
"""Seconds for which records are gathered into one write: each write waits for the disk, and takes
the interpreter from whoever decides meanwhile."""

T = TypeVar("T")
_INSERT = Inserting(schema.events, Record.__struct_fields__)
log = logging.getLogger(__name__)


class RecordsLedger:
    """What happened to grants and environments; the oldest records make room for new ones.

    Its methods may be called from any thread.

    Parameters
    ----------
    path
        The database file.
    keep
        How many records are kept.
    """

    def __init__(self, path: Path, *, keep: int = KEEP) -> None:
        self.path = path
        self.keep = keep
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._queue: Backlog[Record | Samples | Cells | AuditRow] = Backlog(WAITING)
        self._writer: threading.Thread | None = None
        self._closing = threading.Event()
        self._lost = 0
        self._counting = threading.Lock()
        self._waiting_samples = 0
        self.lost_samples = 0

    def open(self) -> list[str]:
        """Open the records, or make them; return sentences that the user should see.

        Raises
        ------
        LedgerNewer
            They were written by a newer version, and have not been touched.
        Unavailable
            They are not ours, or cannot be read or written at present.
        """
        if self._engine is not None:
            raise RuntimeError("the records are open already")
        self._engine, notices = open_ledger(self.path, schema.RECORDS, PRAGMAS)
        self._closing.clear()
        self._queue.begin()
        self._writer = threading.Thread(target=self._write, name="records", daemon=True)
        self._writer.start()
        return notices

    def close(self) -> None:
        """Write what waits, for some seconds at most, and close; again does nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._closing.set()
            self._queue.end()
            writer.join(CLOSE_SECONDS)  # a home directory on a server that hangs
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.dispose()

    def append(self, records: Iterable[Record]) -> None:
        """Write records; they are on the disk when this returns.

        Raises
        ------
        Unavailable
            They could not be written; none of them is there.
        """
        rows = list(records)
        if rows:
            self.run(lambda connection: self._insert(connection, rows))

    def enqueue(self, record: Record | AuditRow) -> None:
        """Have a record written soon, without waiting and without failing.

        When thousands wait already the disk is at fault; the record is lost and the log says so.
        """
        if not self._queue.put(record):
            self._lost += 1

    def enqueue_samples(self, samples: Samples | Cells) -> None:
        """Have samples written soon, without waiting and without failing.

        Those that find too many waiting are counted in ``lost_samples``, as are those that the
        disk refuses. What comes while none waits is taken, however much it is: else a host of many
        environments would have no history at all.
        """
        with self._counting:
            waiting = self._waiting_samples
            if waiting and waiting + len(samples) > WAITING_SAMPLES:
                self.lost_samples += len(samples)
                return
            self._waiting_samples += len(samples)
        if not self._queue.put(samples):
            self._done(samples, lost=True)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Read or write in one transaction.

        Raises
        ------
        Unavailable
            The database could not do it; nothing has changed.
        """
        with self._lock:
            try:
                with self._opened().begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                raise unavailable(self.path, error.orig or error) from error

    def history(
        self,
        since: float | None = None,
        limit: int = 1000,
        *,
        device: str | None = None,
        environment: str | None = None,
    ) -> list[Record]:
        """Return the newest records, oldest of them first.

        Parameters
        ----------
        since
            Seconds since the epoch; nothing older is returned.
        limit
            How many at most.
        device
            Only of this device, and of the environments that held it meanwhile.
        environment
            Only of this environment.

        Raises
        ------
        Unavailable
            They could not be read.
        """
        events = schema.events
        columns = [events.c[name] for name in Record.__struct_fields__]
        query = select(*columns).order_by(events.c.id.desc()).limit(limit)
        if since is not None:
            query = query.where(events.c.at >= since)
        if environment is not None:
            query = query.where(events.c.environment == environment)
        if device is not None:
            there = select(events.c.environment).where(events.c.device == device)
            if since is not None:
                there = there.where(events.c.at >= since)
            nowhere = and_(events.c.device.is_(None), events.c.environment.in_(there))
            query = query.where(or_(events.c.device == device, nowhere))
        found = self.run(lambda connection: connection.execute(query).mappings().all())
        return [Record(**row) for row in reversed(found)]

    def _opened(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the records are not open")
        return self._engine

    def _write(self) -> None:
        while (batch := self._queue.take(BATCH, lambda: self._closing.wait(GATHER))) is not None:
            for samples in batch:
                if isinstance(samples, Samples | Cells):
                    self._write_samples(samples)
            records = [record for record in batch if isinstance(record, Record)]
            entries = [entry for entry in batch if isinstance(entry, AuditRow)]
            try:
                if records or entries:
                    self.run(partial(self._insert, records=records, entries=entries))
            except Unavailable as error:
                self._lost += len(records) + len(entries)
                log.warning("%s", error)
            if self._lost:
                log.warning("%d records could not be kept", self._lost)
                self._lost = 0
            self._queue.done()

    def _insert(
        self, connection: Connection, records: list[Record], entries: Sequence[AuditRow] = ()
    ) -> None:
        """Insert what happened, and make room for it."""
        quotas.note(connection, entries)
        if records:
            _INSERT(connection, map(astuple, records))
            newest = select(func.max(schema.events.c.id)).scalar_subquery()
            connection.execute(
                delete(schema.events).where(schema.events.c.id <= newest - self.keep)
            )

    def _write_samples(self, samples: Samples | Cells) -> None:
        rolled = samples.rolled() if isinstance(samples, Cells) else samples
        try:
            self.run(lambda connection: history.put(connection, rolled))
            self._done(samples, lost=False)
        except Unavailable as error:
            log.warning("%d samples of use could not be kept: %s", len(samples), error)
            self._done(samples, lost=True)

    def _done(self, samples: Samples | Cells, *, lost: bool) -> None:
        with self._counting:
            self._waiting_samples -= len(samples)
            self.lost_samples += len(samples) if lost else 0
