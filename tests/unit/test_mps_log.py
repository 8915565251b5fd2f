"""What tells of a fatal error: the lines are NVIDIA's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from genv_jupyter.isolation.mps_log import MOST, PENDING, SIGNS, LogReader, fault_in, is_pending
from tests.debian import unpacked

STAMP = "[2026-01-02 03:04:05.678 Server 4711]"


def test_nvidias_programs_say_these_lines() -> None:
    (library,) = (unpacked("libcuda1") / "usr/lib").rglob("libcuda.so.535*")
    control = unpacked("nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control"
    server, daemon = library.read_bytes(), control.read_bytes()
    assert all(sign.encode() in server for sign in SIGNS[:2])
    assert SIGNS[2].encode() in daemon
    assert b"NEW CLIENT %d from user %d" in daemon and PENDING.encode() in daemon


@pytest.mark.parametrize(
    ("line", "fatal"),
    [
        ("Server is handling a fatal GPU error.", True),
        ("Client process 4712 encountered a fatal GPU error.", True),
        ("Server encountered a fatal exception. Shutting down", True),
        ("Status of client {0, 4712} is ACTIVE", False),
        ("Client 4712 disconnected", False),
        ("User did not send valid credentials", False),
    ],
)
def test_a_fatal_error_is_told_from_the_rest(tmp_path: Path, line: str, fatal: bool) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"{STAMP} Start\n{STAMP} {line}\n")
    assert fault_in(LogReader(log, old=True).news()) == (line if fatal else None)


def test_a_log_is_read_on_from_where_it_ended(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    reader = LogReader(log)
    assert reader.news() == [], "there is none yet"
    log.write_text(f"{STAMP} one\n{STAMP} tw")
    assert reader.news() == ["one"], "a line that is not whole is read later"
    with log.open("a") as file:
        file.write("o\nwithout a stamp\n")
    assert reader.news() == ["two", "without a stamp"]
    assert reader.news() == []
    log.unlink()
    assert reader.news() == []
    log.write_text(f"{STAMP} anew\n")
    assert reader.news() == ["anew"], "another file begins at its beginning"


def test_what_was_there_before_is_no_news(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"{STAMP} {SIGNS[0]}\n")
    assert LogReader(log).news() == []


def test_of_very_much_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"{STAMP} first\n" + "x" * 100 * MOST + f"\n{STAMP} {SIGNS[0]}\n")
    assert LogReader(log, old=True).news()[-1] == SIGNS[0]


def test_a_client_that_has_to_wait_is_told_from_one_that_has_its_server(tmp_path: Path) -> None:
    log, new = tmp_path / "control.log", "[2026-01-02 03:04:05.678 Control 70] NEW CLIENT"
    assert not is_pending(log, 4711)
    log.write_text(f"{new} 4711 from user 0: Server is not ready, {PENDING}\n")
    assert is_pending(log, 4711) and not is_pending(log, 471)
    with log.open("a") as file:
        file.write(f"{new} 4711 from user 0: Server already exists\n")
    assert not is_pending(log, 4711)
