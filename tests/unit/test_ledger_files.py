"""Ledgers in SQLite files: newer, damaged, half written, older, and whose they are."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from genv_jupyter.errors import LedgerNewer, Unavailable
from genv_jupyter.ledger import LiveLedger, RecordsLedger, files, sqlite
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.ledger.schema import LIVE

NOBODY = EnvironmentRow.nobody("local:1000")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu" / "ledger.sqlite"


def fill(path: Path) -> None:
    """Make a ledger with one environment."""
    ledger = LiveLedger(path)
    assert ledger.open() == []
    with ledger.transaction() as t:
        t.put_environment(NOBODY)
    ledger.close()


def contents(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return every file there: what is in it, its mode, and when it was changed."""
    found = {".": (b"", 0, directory.stat().st_mtime_ns)}  # so that a file that came and went shows
    for file in sorted(directory.iterdir()):
        data, status = file.read_bytes(), file.stat()
        found[file.name] = (data, status.st_mode, status.st_mtime_ns)
    return found


# -- newer -----------------------------------------------------------------------------------------


def with_revision(path: Path, revision: str) -> None:
    fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))


def _closed(path: Path) -> None:
    with_revision(path, "live_999")


def _with_log(path: Path) -> None:
    """The newer revision stands in the write-ahead log only, as after a crash."""
    fill(path)
    away = path.with_name("away")
    with closing(sqlite3.connect(path)) as connection:
        with connection:
            connection.execute("UPDATE alembic_version SET version_num = 'live_999'")
        shutil.copytree(path.parent, away)
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        shutil.copy2(away / name, path.with_name(name))
    shutil.rmtree(away)
    assert path.with_name(f"{path.name}-wal").stat().st_size
    assert b"live_999" not in path.read_bytes()


def _with_journal(path: Path) -> None:
    """A newer version died within a transaction: its journal must be rolled back to read it."""
    with_revision(path, "live_999")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA cache_size=1")
        connection.execute("PRAGMA cache_spill=1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE alembic_version SET version_num = 'live_1'")
        connection.execute("CREATE TABLE big (x)")
        connection.execute(
            "INSERT INTO big WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
            "WHERE i < 200) SELECT randomblob(4000) FROM n"
        )
        away = path.with_name("away")
        shutil.copytree(path.parent, away)
        connection.execute("ROLLBACK")
    for name in (path.name, f"{path.name}-journal"):
        shutil.copy2(away / name, path.with_name(name))
    shutil.rmtree(away)
    assert b"live_999" not in path.read_bytes()


@pytest.mark.parametrize("make", [_closed, _with_log, _with_journal])
def test_a_newer_ledger_is_refused_and_not_a_byte_of_it_is_touched(
    path: Path, make: Callable[[Path], None]
) -> None:
    make(path)
    path.chmod(0o600)
    before = contents(path.parent)
    ledger = LiveLedger(path)
    with pytest.raises(LedgerNewer) as refused:
        ledger.open()
    assert contents(path.parent) == before
    assert "newer version" in str(refused.value)
    assert "Upgrade" in refused.value.hint
    assert refused.value.details == {"found": "live_999", "known": list(LIVE.revisions)}
    with pytest.raises(RuntimeError, match="not open"):
        ledger.transaction()


def test_a_ledger_that_became_newer_while_it_was_opened_is_refused_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_revision(path, "live_999")
    monkeypatch.setattr(sqlite, "_peek", lambda path: None)
    with pytest.raises(LedgerNewer):
        LiveLedger(path).open()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM environments").fetchone() == (1,)


def test_newer_records_are_refused(path: Path) -> None:
    with_revision(path, "records_99")
    before = contents(path.parent)
    with pytest.raises(LedgerNewer):
        RecordsLedger(path).open()
    assert contents(path.parent) == before


# -- damaged ---------------------------------------------------------------------------------------


def _no_database(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"These are not the rows you are looking for.\n" * 100)


def _overwritten(path: Path) -> None:
    fill(path)
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 4] = b"\xff" * 8192
    path.write_bytes(data)


def _cut_off(path: Path) -> None:
    fill(path)
    path.write_bytes(path.read_bytes()[: 4096 * 3 + 100])


def _half_written(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE devices (uuid TEXT)")


def _no_revision(path: Path) -> None:
    fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM alembic_version")


def _table_missing(path: Path) -> None:
    fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE grants")


DAMAGES = {
    _no_database: "not a database",
    _overwritten: "",
    _cut_off: "",
    _half_written: "has tables",
    _no_revision: "does not tell its version",
    _table_missing: "no table 'grants'",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_is_set_aside_and_a_new_one_made(
    path: Path, damage: Callable[[Path], None]
) -> None:
    damage(path)
    before = path.read_bytes()
    ledger = LiveLedger(path)
    (notice,) = ledger.open()
    assert ledger.load().environments == ()
    with ledger.transaction() as t:
        t.put_environment(NOBODY)
    ledger.close()
    (aside,) = path.parent.glob("ledger.sqlite.damaged-*")
    if damage is not _half_written:  # SQLite writes its journal mode into a readable file
        assert aside.read_bytes() == before
    assert str(aside) in notice
    assert "new one" in notice
    assert DAMAGES[damage] in notice
    assert ledger.open() == []
    assert ledger.load().environments == (NOBODY,)
    ledger.close()


def test_setting_aside_never_overwrites_what_was_set_aside_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.time, "strftime", lambda form, when: "20300101T000000Z")
    for number in range(3):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(b"%d" % number * 5000)
        if number != 1:
            path.with_name("ledger.sqlite-wal").write_bytes(b"log %d" % number)
        files.set_aside(path)
    asides = sorted(path.parent.glob("*.damaged-*"))
    assert {file.name: file.read_bytes()[:5] for file in asides} == {
        "ledger.sqlite.damaged-20300101T000000Z": b"00000",
        "ledger.sqlite.damaged-20300101T000000Z-wal": b"log 0",
        "ledger.sqlite.damaged-20300101T000000Z-2": b"11111",
        "ledger.sqlite.damaged-20300101T000000Z-3": b"22222",
        "ledger.sqlite.damaged-20300101T000000Z-3-wal": b"log 2",
    }


def test_damaged_records_are_set_aside_too(path: Path) -> None:
    _no_database(path)
    records = RecordsLedger(path)
    (notice,) = records.open()
    records.close()
    assert "records" in notice
    assert list(path.parent.glob("*.damaged-*"))


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.touch()])
def test_a_ledger_that_is_missing_or_empty_is_made_without_a_word(
    path: Path, make: Callable[[Path], None]
) -> None:
    path.parent.mkdir(mode=0o700)
    make(path)
    fill(path)
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_ledger_that_another_program_holds_is_not_taken_for_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path)
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked") as refused:
            LiveLedger(path).open()
        assert refused.value.hint
        other.execute("ROLLBACK")
    assert not list(path.parent.glob("*.damaged-*"))
    assert LiveLedger(path).open() == []


def test_a_full_disk_is_said_and_changes_nothing(path: Path) -> None:
    fill(path)
    ledger = LiveLedger(path)
    ledger.open()
    assert ledger._transaction is not None
    cursor = ledger._transaction._cursor
    (pages,) = cursor.execute("PRAGMA page_count").fetchone()
    cursor.execute(f"PRAGMA max_page_count={pages}")
    big = EnvironmentRow.nobody("x" * 100_000)
    with pytest.raises(Unavailable, match="full") as refused, ledger.transaction() as t:
        t.put_environment(big)
    assert "disk" in refused.value.hint
    assert ledger.load().environments == (NOBODY,)
    ledger.close()


# -- whose it is -----------------------------------------------------------------------------------


def test_directory_and_files_are_ours_alone(path: Path) -> None:
    ledger = LiveLedger(path)
    ledger.open()
    with ledger.transaction() as t:
        t.put_environment(NOBODY)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(
        ["ledger.sqlite", "ledger.sqlite-shm", "ledger.sqlite-wal"], 0o600
    )
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    ledger.close()
    path.chmod(0o644)
    ledger.open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ledger.close()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_may_write_to_is_refused(path: Path, mode: int) -> None:
    path.parent.mkdir()
    path.parent.chmod(mode)
    with pytest.raises(Unavailable, match="others may write") as refused:
        LiveLedger(path).open()
    assert "chmod 700" in refused.value.hint
    assert not path.exists()


def test_a_link_in_the_place_of_directory_or_file_is_refused(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    path.parent.symlink_to(elsewhere)
    with pytest.raises(Unavailable, match="not a directory of yours"):
        LiveLedger(path).open()
    path.parent.unlink()
    path.parent.mkdir(mode=0o700)
    path.symlink_to(elsewhere / "stolen")
    with pytest.raises(Unavailable, match="not a file of yours"):
        LiveLedger(path).open()
    assert not list(elsewhere.iterdir())


def test_somebody_elses_directory_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir(mode=0o700)
    monkeypatch.setattr(files.os, "geteuid", lambda: path.parent.stat().st_uid + 1)
    with pytest.raises(Unavailable, match="not a directory of yours"):
        LiveLedger(path).open()
    assert not path.exists()


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be used"):
        LiveLedger(tmp_path / "file" / "gpu" / "ledger.sqlite").open()


def test_a_transaction_holds_the_ledger_from_its_beginning(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    first, second = LiveLedger(path), LiveLedger(path)
    assert first.open() == second.open() == []
    with first.transaction(), pytest.raises(Unavailable, match="locked"), second.transaction():
        pass
    with second.transaction() as t:
        t.put_environment(NOBODY)
    assert first.load().environments == (NOBODY,)
    first.close()
    second.close()
