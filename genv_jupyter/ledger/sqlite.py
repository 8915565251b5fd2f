"""Opening a ledger in SQLite: newer ones are left alone, damaged ones set aside, older migrated."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, insert
from sqlalchemy.exc import DBAPIError

from genv_jupyter.errors import LedgerNewer, Unavailable
from genv_jupyter.ledger import files
from genv_jupyter.ledger.schema import Schema, version

BUSY_SECONDS = 5.0
_VERSION = "SELECT version_num FROM alembic_version"
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Damaged(Exception):
    """The file is no ledger, or no longer."""


def open_ledger(path: Path, schema: Schema, pragmas: Mapping[str, str]) -> tuple[Engine, list[str]]:
    """Open the ledger at ``path``, or make one there.

    Parameters
    ----------
    path
        The database file; its directory is made if it is missing.
    schema
        Which ledger it is.
    pragmas
        Settings of the connection, in order.

    Returns
    -------
    tuple
        An engine with exactly one connection, usable from one thread at a time, whose
        transactions begin with ``BEGIN IMMEDIATE``; and sentences the user should see.

    Raises
    ------
    LedgerNewer
        It was written by a newer version; no byte of it was touched.
    Unavailable
        It is not ours, or cannot be read or written at present (locked, disk full).
    """
    files.claim(path)
    _check_newer(path, schema, _peek(path))
    try:
        return _open(path, schema, pragmas), []
    except Damaged as damage:
        aside = files.set_aside(path)
        files.claim(path)
        notice = (
            f"The {schema.name} ledger was damaged ({damage}) and has been set aside as {aside}; "
            "a new one was made."
        )
    try:
        return _open(path, schema, pragmas), [notice]
    except Damaged as damage:  # of a file that we have just made: the disk itself is at fault
        raise Unavailable(
            f"The ledger {path} cannot be written: {damage}.",
            hint="Check the disk, or set GENV_JUPYTER_HOME to a directory on another one.",
        ) from damage


def unavailable(path: Path, error: BaseException) -> Unavailable:
    """Return what to tell a user when the database could not do its work."""
    return Unavailable(
        f"The ledger {path} could not be read or written: {error}.",
        hint="Check that the disk is not full and that no other program holds the file, "
        "then try again.",
    )


def _peek(path: Path) -> str | None:
    """Read the revision without touching anything; ``None`` when it cannot be read.

    An ordinary connection would play a log into the database when it closes.
    """
    if not path.stat().st_size:
        return None
    try:
        logs = files.unsettled(path)
        if not logs:
            return _read_revision(f"{path.absolute().as_uri()}?immutable=1")
        with tempfile.TemporaryDirectory(prefix="genv-jupyter-") as directory:
            for file in (path, *logs):
                shutil.copyfile(file, Path(directory, file.name))
            return _read_revision(Path(directory, path.name).as_uri())
    except (sqlite3.Error, OSError):
        return None  # opening it in earnest will tell what is wrong


def _read_revision(uri: str) -> str | None:
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        found = connection.execute(_VERSION).fetchone()
    return None if found is None else str(found[0])


def _check_newer(path: Path, schema: Schema, revision: str | None) -> None:
    if revision is not None and revision not in schema.revisions:
        raise LedgerNewer(
            f"The ledger {path} was written by a newer version of genv-jupyter "
            f"(its schema is {revision!r}; this version knows {schema.head!r}).",
            hint="Upgrade genv-jupyter here, or move the file away. It has not been touched.",
            details={"found": revision, "known": list(schema.revisions)},
        )


def _open(path: Path, schema: Schema, pragmas: Mapping[str, str]) -> Engine:
    engine = create_engine(
        "sqlite://", creator=lambda: _connect(path, pragmas), poolclass=StaticPool
    )
    event.listen(engine, "begin", _begin)
    try:
        with engine.begin() as connection:
            _prepare(connection, path, schema)
    except DBAPIError as error:
        engine.dispose()
        raise _verdict(path, error.orig or error) from error
    except sqlite3.Error as error:
        engine.dispose()
        raise _verdict(path, error) from error
    except BaseException:
        engine.dispose()
        raise
    return engine


def _connect(path: Path, pragmas: Mapping[str, str]) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        for name, value in pragmas.items():
            connection.execute(f"PRAGMA {name}={value}").close()
    except BaseException:
        connection.close()
        raise
    return connection


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _verdict(path: Path, error: BaseException) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return Damaged(str(error)) if code in _BROKEN else unavailable(path, error)


def _prepare(connection: Connection, path: Path, schema: Schema) -> None:
    """Check the ledger and bring it to this version's schema, in one transaction."""
    problem = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if problem != "ok":
        raise Damaged(str(problem).splitlines()[-1])
    tables = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
    if not tables:
        _create(connection, schema)
        return
    if version.name not in tables:
        raise Damaged("it has tables, and none that tells its version")
    revision = connection.exec_driver_sql(_VERSION).scalar()
    if revision is None:
        raise Damaged("it does not tell its version")
    _check_newer(path, schema, revision)
    if revision != schema.head:
        _migrate(connection, schema)
    elif not tables.issuperset(schema.tables.tables):
        missing = sorted(schema.tables.tables.keys() - tables)
        raise Damaged(f"it has no table {missing[0]!r}")


def _create(connection: Connection, schema: Schema) -> None:
    """Make the tables as the last migration would leave them, without importing Alembic."""
    schema.tables.create_all(connection)
    version.create(connection)
    connection.execute(insert(version).values(version_num=schema.head))


def _migrate(connection: Connection, schema: Schema) -> None:
    from genv_jupyter.ledger.migrations import upgrade

    try:
        upgrade(connection, schema)
    except Exception as error:
        # Whatever a migration stumbles over is in the file, which would stop every later start.
        raise Damaged(f"it could not be migrated: {error}") from error
