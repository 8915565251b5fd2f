"""Records: kept in order, bounded, written behind the broker's back."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from genv_jupyter.errors import Unavailable
from genv_jupyter.ledger import RecordsLedger, sqlite
from genv_jupyter.ledger import records as module
from genv_jupyter.ledger.records import Record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu" / "records.sqlite"


@pytest.fixture
def records(path: Path) -> Iterator[RecordsLedger]:
    made = RecordsLedger(path, keep=50)
    assert made.open() == []
    yield made
    made.close()


def record(number: int, **changes: object) -> Record:
    return Record(at=float(number), event="GrantAdded", owner="local:1", **changes)  # type: ignore[arg-type]


def test_what_was_appended_comes_back_in_order_after_reopening(
    records: RecordsLedger, path: Path
) -> None:
    full = record(3, environment="e", device="GPU-a", memory=2**62, compute=5000, reason="Größe")
    records.append([record(1), record(2)])
    records.append([full])
    records.close()
    again = RecordsLedger(path)
    assert again.open() == []
    assert again.history() == [record(1), record(2), full]
    assert again.history(since=2.0) == [record(2), full]
    assert again.history(limit=1) == [full]
    again.close()


def test_the_oldest_records_make_room(records: RecordsLedger) -> None:
    for start in range(0, 120, 8):
        records.append(record(number) for number in range(start, start + 8))
    assert [found.at for found in records.history()] == list(range(70, 120))
    records.append([])
    records.append(record(number) for number in range(500))
    assert [found.at for found in records.history()] == list(range(450, 500))


def test_what_waits_is_written_before_the_records_close(path: Path) -> None:
    made = RecordsLedger(path)
    made.open()
    for number in range(1200):
        made.enqueue(record(number))
    made.close()
    made.close()
    made = RecordsLedger(path)
    made.open()
    assert [found.at for found in made.history(limit=5000)] == list(range(1200))
    made.close()


def test_the_file_syncs_fully_and_has_no_write_ahead_log(
    records: RecordsLedger, path: Path
) -> None:
    records.append([record(1)])
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with records._opened().begin() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


def test_records_that_cannot_be_written_are_lost_with_a_word_and_later_ones_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    made = RecordsLedger(path)
    made.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="locked"):
            made.append([record(1)])
        with pytest.raises(Unavailable, match="locked"):
            made.history()
        with caplog.at_level(logging.WARNING):
            made.enqueue(record(2))
            made._queue.join()
        other.execute("ROLLBACK")
    assert "1 records could not be kept" in caplog.text
    made.enqueue(record(3))
    made.close()
    made.open()
    assert made.history() == [record(3)]
    made.close()


def test_many_records_at_once_are_all_kept_in_their_order(path: Path) -> None:
    made = RecordsLedger(path)
    made.open()
    for number in range(500):
        made.enqueue(record(number))
    made.close()
    made.open()
    made.enqueue(record(500))
    made.close()
    made.open()
    assert [found.at for found in made.history()] == list(range(501))
    made.close()


def test_a_full_queue_never_stops_who_decides(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAITING", 5)
    made = RecordsLedger(path)
    for number in range(8):
        made.enqueue(record(number))
    with caplog.at_level(logging.WARNING):
        made.open()
        made.close()
    assert "3 records could not be kept" in caplog.text
    made.open()
    assert [found.at for found in made.history()] == [0, 1, 2, 3, 4]
    made.close()
