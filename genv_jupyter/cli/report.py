"""``jupyter gpu report``: GPU hours, idle time and peak memory, from the history of use."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import click

from genv_jupyter.api.client import Client
from genv_jupyter.cli.output import shows
from genv_jupyter.errors import BadRequest
from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import Block, Table, Text, Title, printable
from genv_jupyter.kernel.views import PageView, View
from genv_jupyter.model import Device
from genv_jupyter.reports import By, ReportRow, UsageReport
from genv_jupyter.units import format_duration, format_memory, parse_duration

NEARLY = 0.98
"""Of a time: from here on as good as all of it."""

_HEADS = (
    "key",
    "user",
    "name",
    "gpu_hours",
    "held_hours",
    "known_hours",
    "idle_hours",
    "memory_peak_bytes",
    "simulated",
)
_FORMULA = ("=", "+", "-", "@")


@click.command()
@click.option("--since", default="7d", metavar="TIME", help="7d, 12h, or 2026-01-31 [7d].")
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    default="environment",
    help="A row for each of these [environment].",
)
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV, for a spreadsheet.")
@shows
def report(since: str, by: By, as_csv: bool) -> tuple[Any, View]:
    """GPU hours, idle time and peak memory of the past.

    GPU hours are share x time. Idle is the part of the time in which use was
    known and there was none. Where no broker ran there are no figures.
    """
    client = Client()
    found = client.usage_report(began(since, datetime.now(UTC)), by)
    if as_csv:
        return found, CsvView(found)
    return found, PageView(page(found, client.devices()))


def began(text: str, now: datetime) -> datetime:
    """Read since when: a duration before ``now``, or a date, or a time of a date.

    Raises
    ------
    BadRequest
        It is neither.
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is not None and not text.isdigit():
        return when.astimezone() if when.tzinfo is None else when
    try:
        return now - timedelta(seconds=parse_duration(text))
    except BadRequest:
        raise BadRequest(
            f"--since {text[:32]!r} is no time.", hint="Write 7d, 12h, or 2026-01-31."
        ) from None


def page(found: UsageReport, devices: list[Device]) -> list[Block]:
    """Return a report as a page."""
    mark = "SIMULATED" if found.simulated else ""
    since = f"{found.since.astimezone():%Y-%m-%d %H:%M}"
    blocks: list[Block] = [Title(f"GPU use since {since}, by {found.by}", mark)]
    if not found.rows:
        blocks.append(Text("Nobody held a GPU, as far as anybody looked."))
    else:
        blocks.append(_table(found, {it.uuid: words.device_label(it) for it in devices}))
    blocks += [Text(note, "warn") for note in _notes(found)]
    return blocks


def _table(found: UsageReport, labels: dict[str, str]) -> Table:
    """Return a row for each, with the user where there is more than one."""
    users = found.by == "environment" and len({row.user for row in found.rows}) > 1
    heads = [found.by, *(["id"] if found.by == "environment" else []), *(["user"] if users else [])]
    rows = []
    for row in found.rows:
        cells = [_who(found.by, row, labels)]
        if found.by == "environment":
            cells.append(row.key[:8])
        if users:
            cells.append(row.user or "?")
        peak = "?" if row.memory_peak is None else format_memory(row.memory_peak)
        cells += [f"{row.gpu_seconds / 3600:.2f}", format_duration(row.held_seconds), peak]
        rows.append((*cells, _idle(row)))
    figures = len(heads)
    keep = (figures, figures + 1, figures + 2, *((1,) if found.by == "environment" else ()))
    return Table((*heads, "GPU hours", "held", "peak", "idle"), tuple(rows), keep=keep, least=18)


def _idle(row: ReportRow) -> str:
    """Say which part was idle, and of how much where that is not all."""
    if not row.known_seconds:
        return "?" if row.held_seconds else ""
    part = f"{100 * row.idle_seconds / row.known_seconds:.0f} %"
    if row.known_seconds >= NEARLY * row.held_seconds:
        return part
    return f"{part} of {format_duration(row.known_seconds)}"


def _who(by: By, row: ReportRow, labels: dict[str, str]) -> str:
    if by == "device":
        label = labels.get(row.key)
        return words.short(row.key) if label is None else f"{label} ({words.short(row.key)})"
    if by == "user":
        return row.user or row.key
    return row.name or "?"


def _notes(found: UsageReport) -> list[str]:
    notes = []
    span = (found.until - found.since).total_seconds()
    if found.seen_seconds < NEARLY * span:
        notes.append(
            f"A broker looked for {format_duration(found.seen_seconds)} of "
            f"{format_duration(span)}; of the rest nothing is known, and nothing is counted."
        )
    if any(row.known_seconds < NEARLY * row.held_seconds for row in found.rows):
        notes.append("The driver did not always say what was used: idle is of the time it did.")
    if found.lost_samples:
        notes.append(f"{found.lost_samples} samples could not be written and are missing.")
    return notes


class CsvView(View):
    """A report as comma-separated values; hours and bytes are plain numbers."""

    def __init__(self, report: UsageReport) -> None:
        self.report = report

    def __repr__(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_HEADS)
        for row in self.report.rows:
            hours = (row.gpu_seconds, row.held_seconds, row.known_seconds, row.idle_seconds)
            writer.writerow(
                [
                    *(_cell(cell) for cell in (row.key, row.user, row.name)),
                    *(f"{seconds / 3600:.4f}" for seconds in hours),
                    row.memory_peak,
                    str(self.report.simulated).lower(),
                ]
            )
        return text.getvalue().removesuffix("\n")


def _cell(text: str | None) -> str:
    """Return a text that a spreadsheet does not take for a formula: names are anybody's."""
    shown = printable(text or "")
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
