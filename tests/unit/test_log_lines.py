"""Lines of the log: many at once, none lost, each with its beginning."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from genv_jupyter.broker import log_lines
from genv_jupyter.broker.log_lines import EachLine, LogLines


class Kept(logging.Handler):
    """A log that keeps what it is told, once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.open = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        assert self.open.wait(30)
        self.said.append(self.format(record))


@pytest.fixture
def kept() -> Kept:
    log = logging.getLogger("test.log_lines")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.handlers = [Kept()]
    log.handlers[0].setFormatter(EachLine("%(levelname)s %(message)s"))
    found = log.handlers[0]
    assert isinstance(found, Kept)
    return found


def test_lines_come_in_order_and_all_of_them(kept: Kept) -> None:
    kept.open.set()
    lines = LogLines[int](logging.getLogger("test.log_lines"), lambda number: f"line {number}")
    for number in range(3000):
        lines.say(number)
    lines.flush()
    assert "\n".join(kept.said).splitlines() == [f"INFO line {number}" for number in range(3000)]
    assert len(kept.said) < 100, "many at once"


def test_a_log_that_takes_nothing_stops_nobody(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "WAITING", 10)
    monkeypatch.setattr(log_lines, "BATCH", 1)
    lines = LogLines[int](logging.getLogger("test.log_lines"), str)
    for number in range(30):  # the first is on its way for ever, and ten wait
        lines.say(number)
    kept.open.set()
    lines.flush()
    assert kept.said[0] == "INFO 0"
    assert any("lines were lost" in line for line in kept.said)


def test_what_was_said_is_written_before_the_end() -> None:
    program = (
        "import logging, sys\n"
        "from genv_jupyter.broker.log_lines import LogLines\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stderr, format='%(message)s')\n"
        "LogLines(logging.getLogger('x'), str).say('the last word')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stderr == "the last word\n"
