"""`jupyter gpu report`: 80 columns, honest about what is not known, and CSV that runs nothing."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from click.testing import CliRunner

from genv_jupyter.api.client import Client
from genv_jupyter.cli import report
from genv_jupyter.cli.main import main
from genv_jupyter.errors import BadRequest
from genv_jupyter.kernel.document import columns, to_text
from genv_jupyter.reports import By, ReportRow, UsageReport
from tests.unit.test_magic_views import GIB, UUIDS, device

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def row(key: str, **changes: object) -> ReportRow:
    made = ReportRow(
        key=key,
        user="ada",
        name="train.ipynb",
        gpu_seconds=9000,
        held_seconds=18000,
        known_seconds=18000,
        idle_seconds=4500,
        memory_peak=6 * GIB,
    )
    return msgspec.structs.replace(made, **changes)


def made(*rows: ReportRow, by: By = "environment", **changes: object) -> UsageReport:
    found = UsageReport(
        by=by,
        since=NOW - timedelta(days=7),
        until=NOW,
        seen_seconds=7 * 86400,
        simulated=False,
        lost_samples=0,
        rows=rows,
    )
    return msgspec.structs.replace(found, **changes)


def text(found: UsageReport) -> str:
    written = to_text(report.page(found, [device(0)]))
    assert all(columns(line) <= 80 for line in written.splitlines()), written
    return written


def test_a_page_has_hours_idle_share_and_peak() -> None:
    written = text(made(row("3f2a" * 8)))
    assert "2.50" in written and "5 h 00 min" in written and "25 %" in written
    assert "6 GiB" in written and "train.ipynb  3f2a3f2a" in written and "ada" not in written
    both = text(made(row("3f2a" * 8), row("77" * 16, user="bob")))
    assert "ada" in both and "bob" in both
    assert "!" not in written, "all was seen"


def test_devices_are_called_as_everywhere_and_others_names_are_not_told() -> None:
    written = text(made(row(UUIDS[0]), row("GPU-gone5678-x", memory_peak=None), by="device"))
    assert "GPU 0 (" in written and "GPU-gone5678" in written and "?" in written
    assert "?            abcdabcd" in text(made(row("abcd" * 8, name=None)))
    assert "ada" in text(made(row("local:1000", name=None), by="user"))


def test_gaps_are_told() -> None:
    written = text(made(row("a"), seen_seconds=86400))
    assert "A broker looked for 24 h 00 min of 7 d" in written
    written = text(made(row("a", known_seconds=9000), lost_samples=12))
    assert "50 % of 2 h 30 min" in written and "12 samples" in written
    assert "did not always say" in written
    assert "?" in text(made(row("a", known_seconds=0, idle_seconds=0)))
    assert "Nobody held a GPU" in text(made())
    assert "SIMULATED" in text(made(simulated=True))


def test_names_break_no_page() -> None:
    names = ("x" * 200, "訓練用の大きなノートブック" * 8, "\x1b[2Jevil\r\nname", "")
    text(made(*(row(f"{i}" * 32, name=name, user=name) for i, name in enumerate(names))))


def test_csv_has_plain_numbers_and_no_formula() -> None:
    found = made(row("a" * 32, name="=HYPERLINK(1)"), row("b", name='x,"y"\n', memory_peak=None))
    first, second = csv.DictReader(io.StringIO(repr(report.CsvView(found))))
    assert first["name"] == "'=HYPERLINK(1)"
    assert (first["gpu_hours"], first["idle_hours"]) == ("2.5000", "1.2500")
    assert first["memory_peak_bytes"] == str(6 * GIB) and first["simulated"] == "false"
    assert second["name"].startswith('x,"y"') and second["memory_peak_bytes"] == ""


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("7d", NOW - timedelta(days=7)),
        ("90", NOW - timedelta(seconds=90)),
        ("2h30m", NOW - timedelta(hours=2.5)),
        ("2026-11-01T08:00:00Z", datetime(2026, 11, 1, 8, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 11, 1).astimezone()),
    ],
)
def test_since_is_a_span_or_a_date(text: str, when: datetime) -> None:
    assert report.began(text, NOW) == when


def test_since_that_is_neither_is_refused() -> None:
    with pytest.raises(BadRequest, match="no time"):
        report.began("yesterday", NOW)


def test_the_command_writes_a_page_csv_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(row("3f2a" * 8))
    asked: list[By] = []

    def answer(self: Client, since: datetime, by: By) -> UsageReport:
        asked.append(by)
        return found

    monkeypatch.setattr(Client, "usage_report", answer)
    monkeypatch.setattr(Client, "devices", lambda self: [device(0)])
    run = CliRunner().invoke
    assert "train.ipynb" in run(main, ["report", "--since", "1d", "--by", "user"]).output
    assert run(main, ["report", "--csv"]).output.startswith("key,user,name,gpu_hours")
    answered = run(main, ["report", "--json"]).output
    assert msgspec.json.decode(answered, type=UsageReport) == found
    assert asked == ["user", "environment", "environment"]
    bad = run(main, ["report", "--since", "soon"])
    assert bad.exit_code == 2 and "--since 'soon' is no time" in bad.stderr
