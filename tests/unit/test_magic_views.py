"""Views: readable in 80 columns, safe and themed as HTML, honest about what is unknown."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from genv_jupyter.errors import NoCapacity
from genv_jupyter.isolation.environ import limits_of
from genv_jupyter.kernel import help, words
from genv_jupyter.kernel.document import Meter, Table, Text, Title, to_text
from genv_jupyter.kernel.lining import QueueView
from genv_jupyter.kernel.magics import GpuMagicFailed
from genv_jupyter.kernel.views import DevicesView, EnvironmentsView, StatusView, View
from genv_jupyter.model import Device, DeviceGrant, Environment, Grant, QueueTicket, Request

GIB = 2**30
UUIDS = ("GPU-11111111-0000-4000-8000-000000000000", "GPU-22222222-0000-4000-8000-000000000001")
HERE = "aaaaaaaa-0000-4000-8000-000000000000"
EVIL = '<script>alert("x")</script>' + "ü" * 60 + ".ipynb"
LONG_AGO = datetime.now(UTC) - timedelta(days=3)


def device(number: int = 0, **facts: Any) -> Device:
    plain = Device(
        uuid=UUIDS[number],
        index=number,
        name="NVIDIA RTX 6000 Ada Generation",
        kind="gpu",
        parent=None,
        memory_total=24 * GIB,
        memory_usable=23 * GIB,
        memory_used=5 * GIB,
        utilization=37,
        health="ok",
        simulated=False,
        grants=(),
        external_memory=2 * GIB,
        unattributed_memory=0,
    )
    return msgspec.structs.replace(plain, **facts)


def held(**facts: Any) -> DeviceGrant:
    plain = DeviceGrant(
        environment=HERE,
        user="a-user-with-quite-a-long-name",
        name=EVIL,
        memory=6 * GIB,
        compute=2500,
        exclusive=False,
        state="granted",
        since=LONG_AGO,
    )
    return msgspec.structs.replace(plain, **facts)


def environment(**facts: Any) -> Environment:
    plain = Environment(
        id=HERE,
        previous=None,
        user="alice",
        kind="kernel",
        name=EVIL,
        path=None,
        server="bbbbbbbb-0000-4000-8000-000000000000",
        kernel_state="idle",
        idle_since=LONG_AGO,
        request=Request(fraction=0.25),
        pending=None,
        grants=(
            Grant(
                device=UUIDS[0],
                memory=6 * GIB,
                compute=2500,
                exclusive=False,
                state="granted",
                applied="live",
                limits=limits_of(compute=2500, exclusive=False, simulated=False),
                since=LONG_AGO,
            ),
        ),
        state="granted",
        applied="live",
        created=LONG_AGO,
        expires=None,
        cuda="not_initialized",
        reason="A reason that is said. " * 6,
    )
    return msgspec.structs.replace(plain, **facts)


UNKNOWN = device(
    1,
    index=None,
    name=None,
    memory_total=None,
    memory_usable=None,
    memory_used=None,
    utilization=None,
    health="unknown",
    external_memory=None,
    unattributed_memory=None,
)
VIEWS: dict[str, View] = {
    "status": StatusView(environment(), [device()], visible=UUIDS[0]),
    "nothing": StatusView(environment(grants=()), [device(), UNKNOWN], visible=""),
    "elsewhere": StatusView(None, [], terminal=True),
    "devices": DevicesView([device(grants=(held(), held(state="draining"))), UNKNOWN], mine=HERE),
    "lost": DevicesView([device(health="lost", grants=(held(exclusive=True),))]),
    "envs": EnvironmentsView([environment(), environment(grants=(), name=None)], [device()]),
    "help": help.view(),
}


class Checker(HTMLParser):
    """Fails on tags that are not closed in order, and collects colours."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.styles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.open.append(tag)
        self.styles += [value or "" for name, value in attrs if name == "style"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", VIEWS)
def test_text_fits_a_terminal(name: str) -> None:
    lines = repr(VIEWS[name]).splitlines()
    assert lines
    assert max(map(len, lines)) <= 80
    assert "None" not in repr(VIEWS[name])


@pytest.mark.parametrize("name", VIEWS)
def test_html_is_escaped_and_takes_its_colours_from_the_theme(name: str) -> None:
    checker = Checker()
    checker.feed(VIEWS[name]._repr_html_())
    assert checker.open == []
    for style in checker.styles:
        bare = re.sub(r"var\(--jp-[a-z0-9-]+, [^()]*(\([^()]*\))?[^()]*\)", "", style)
        assert not re.search(r"#[0-9a-f]{3}|rgb|\b(white|black)\b(?!-)", bare), style


def test_unknown_memory_is_never_zero() -> None:
    text = repr(DevicesView([UNKNOWN]))
    assert "memory unknown" in text
    assert "0 B" not in text and "0 %" not in text


def test_simulated_devices_are_marked_in_both_forms() -> None:
    for view in (
        StatusView(None, [device(simulated=True)]),
        DevicesView([device(simulated=True)]),
        EnvironmentsView([], [device(simulated=True)]),
    ):
        assert "SIMULATED" in repr(view)
        assert "SIMULATED" in view._repr_html_()
    assert "SIMULATED" not in repr(DevicesView([device()]))


def test_outside_memory_is_not_free() -> None:
    crowded = device(external_memory=20 * GIB, unattributed_memory=2 * GIB)
    assert words.free_memory(crowded) == GIB
    assert words.free_memory(device(grants=(held(exclusive=True),))) == 0
    assert words.free_memory(device(health="lost")) == 0
    assert "22 GiB outside" in repr(DevicesView([crowded]))


def test_holders_are_named_with_what_and_since_when() -> None:
    (line,) = [
        line
        for line in repr(DevicesView([device(grants=(held(name="llm.ipynb"),))])).splitlines()
        if "llm.ipynb" in line
    ]
    assert "a-user" in line and "6 GiB, 25 % of compute" in line and "since" in line


def test_meter_never_leaves_its_bar() -> None:
    lines = Meter((("held", 0.7), ("outside", 0.7), ("draining", 1.0)), "full").lines()
    assert lines[0].index("]") - lines[0].index("[") == 29
    assert Meter((), "empty").lines()[0].count("-") == 28


def test_table_keeps_every_word_of_its_last_column() -> None:
    table = Table(("name", "holds"), (("x" * 200, "one two three " * 20),))
    assert to_text([table]).split().count("three") == 20
    assert "…" in to_text([table])


def test_a_name_that_is_cut_still_says_that_it_is_here() -> None:
    table = Table(("name", "holds"), (("x" * 200 + " (here)", "one two three " * 20),))
    assert "x… (here)" in to_text([table])
    assert max(map(len, to_text([table]).splitlines())) <= 80


@pytest.mark.parametrize("days", [0, 1, 30])
def test_the_queue_has_room_for_any_day(days: int) -> None:
    """A lease that ends after midnight takes more room, which a short name does not pay for."""
    now = datetime.now(UTC)
    ticket = QueueTicket(
        id="t1",
        environment="e1",
        user="a-user",
        position=1,
        request=Request(gpus=1),
        since=now,
        name="b.ipynb",
        state="waiting",
        until=None,
        held=(),
        expected=now + timedelta(days=days),
        guess=False,
        message="",
    )
    text = repr(QueueView([ticket], [device(simulated=True)], mine="e1"))
    assert ("b.ipynb (here)" if days < 30 else " (here)") in text
    assert "(a lease ends)" in " ".join(text.split()) and max(map(len, text.splitlines())) <= 80


def test_long_title_keeps_its_mark() -> None:
    lines = Title("word " * 40, "SIMULATED").lines()
    assert lines[0].endswith("SIMULATED")
    assert max(map(len, lines)) <= 80
    assert Text("x", "warn").lines() == ["! x"]


def test_a_refusal_does_nothing_to_a_terminal() -> None:
    """The names of holders are in it, and may be another user's."""
    name = "\x1b]0;owned\x07\x9b2J\u202egpj.py\r\nx"
    error = NoCapacity(f"{name} holds 12 GiB.", hint=f"Ask {name}.")
    failed = GpuMagicFailed(str(error), error)
    bare = GpuMagicFailed(f"Restarting {name}.")
    lines = [*failed._render_traceback_(), *bare._render_traceback_(), *str(failed).split("\n")]
    assert all(line.isprintable() for line in lines)
    assert "owned" in lines[0]
