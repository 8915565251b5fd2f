"""Asking those who hold a device: who is asked, how often, what they read, and the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from genv_jupyter.asks import Answer, Ask
from genv_jupyter.errors import BadRequest, Conflict, NotYours, OutOfRange, TooOften
from genv_jupyter.model import Principal, Request
from genv_jupyter.notices import Notice
from tests.unit.brokers import HALF, WHOLE, Bench, Kernel, bench

STRANGER = Principal(realm="local", id="4711", name="eve")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def ask(kernel: Kernel, message: str | None = None, request: Request | None = None) -> list[str]:
    """Ask; return the environments that were told."""
    desk = kernel.bench
    body = Ask(message=message, request=request)
    return [it.environment for it in desk.broker.asking.ask(desk.me, kernel.id, body).holders]


def reads(kernel: Kernel) -> Notice | None:
    desk = kernel.bench
    desk.tick()
    found = [
        notice
        for notice in desk.broker.notices(desk.me)
        if notice.kind == "ask" and notice.environment == kernel.id
    ]
    return found[0] if found else None


def test_holders_of_what_is_needed_are_asked(desk: Bench) -> None:
    whole, half, other = (desk.kernel(f"{name}.ipynb") for name in "abc")
    whole.attach(WHOLE)
    half.attach(HALF)
    assert ask(other, "an hour?") == [whole.id, half.id]
    notice = reads(half)
    assert notice is not None and notice.level == "info" and "release" in notice.actions
    assert notice.message.startswith("c.ipynb of ")
    assert notice.message.endswith("needs what is held here, and asks: an hour?")
    assert reads(other) is None


def test_what_is_needed_is_what_is_waited_for(desk: Bench) -> None:
    first, second, other = (desk.kernel(f"{name}.ipynb") for name in "abc")
    first.attach(Request(devices=("0",)))
    second.attach(Request(devices=("1",)))
    desk.broker.attach(desk.me, other.id, Request(devices=("1",), wait="1h"))
    assert ask(other) == [second.id]
    assert "how long still?" in reads(second).message
    assert ask(other, request=Request(devices=("0",), memory="4G")) == [first.id]


def test_nobody_is_asked_for_what_is_free_or_not_theirs(desk: Bench) -> None:
    holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(HALF)
    with pytest.raises(Conflict, match="There is room"):
        ask(other)
    desk.source.devices[1].external_memory = 8 * 2**30
    desk.tick(5)
    with pytest.raises(Conflict, match="Nobody who could be asked"):
        ask(other, request=Request(devices=("1",)))
    with pytest.raises(NotYours):
        desk.broker.asking.ask(STRANGER, other.id, Ask())


def test_nobody_is_asked_whose_leaving_would_not_help(tmp_path: Path) -> None:
    with bench(tmp_path, "2x24GiB,1x8GiB") as desk:
        first, second, third, other = (desk.kernel(f"{name}.ipynb") for name in "abcd")
        for number, kernel in enumerate((first, second, third)):
            kernel.attach(Request(devices=(str(number),)))
        desk.source.devices[0].health = "lost"
        desk.tick(1)
        assert ask(other, request=Request(memory="20GiB")) == [second.id]
        desk.pass_time(600)
        # What it holds itself (its half that is to grow) is not in its way.
        third.attach(Request(devices=("2",), memory="4GiB"))
        fourth = desk.kernel("e.ipynb")
        fourth.attach(Request(devices=("2",), memory="1GiB"))
        assert ask(third, request=Request(devices=("2",))) == [fourth.id]


def test_same_holder_is_not_asked_again_at_once(desk: Bench) -> None:
    holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(Request(gpus=2))
    ask(other)
    before = reads(holder)
    desk.pass_time(540)
    with pytest.raises(TooOften) as refusal:
        ask(other, "well?")
    assert refusal.value.status == 429 and 60 <= refusal.value.details["retry_after"] <= 61
    assert reads(holder) == before
    desk.pass_time(60)
    ask(other, "well?")
    assert "well?" in reads(holder).message
    assert "how long still?" not in reads(holder).message


def test_answer_reaches_who_asked_and_ends_the_question(desk: Bench) -> None:
    holder, one, two = (desk.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(Request(gpus=2))
    ask(one)
    notice = reads(holder)
    with pytest.raises(Conflict):
        desk.broker.asking.answer(STRANGER, notice.id, Answer(minutes=30))
    desk.broker.asking.answer(desk.me, notice.id, Answer(minutes=30, message="after this epoch"))
    assert reads(holder) is None and reads(two) is None
    assert reads(one).message.endswith("answers: in 30 min: after this epoch.")
    with pytest.raises(Conflict):
        desk.broker.asking.answer(desk.me, notice.id, Answer(minutes=30))


@pytest.mark.parametrize("has", [None, "10m", "2h"])
def test_answer_in_minutes_gives_a_lease_and_never_a_longer_one(
    desk: Bench, has: str | None
) -> None:
    holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(Request(gpus=2, duration=has))
    ask(other)
    desk.broker.asking.answer(desk.me, reads(holder).id, Answer(minutes=30))
    expires = holder.now.expires
    assert expires is not None
    assert expires.timestamp() - desk.clock.now == (600 if has == "10m" else 1800)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(), BadRequest),
        (Answer(message="  "), BadRequest),
        (Answer(minutes=0), OutOfRange),
        (Answer(minutes=10**9), OutOfRange),
        (Answer(message="x" * 201), OutOfRange),
    ],
)
def test_answers_that_say_nothing_are_refused(
    desk: Bench, answer: Answer, kind: type[Exception]
) -> None:
    holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(Request(gpus=2))
    ask(other)
    with pytest.raises(kind):
        desk.broker.asking.answer(desk.me, reads(holder).id, answer)
    assert reads(holder) is not None and reads(other) is None


def test_lease_and_release_are_answers(desk: Bench) -> None:
    first, second, other = (desk.kernel(f"{name}.ipynb") for name in "abc")
    first.attach(Request(devices=("0",)))
    second.attach(Request(devices=("1",)))
    ask(other)
    first.attach(Request(devices=("0",), duration="30m"))
    assert reads(first) is None
    assert (
        "a.ipynb of" in reads(other).message and "in 30 min, by its lease" in reads(other).message
    )
    second.detach()
    assert reads(second) is None
    assert "it has given back what it held" in reads(other).message


def test_question_is_old_after_an_hour_and_gone_with_its_holder(desk: Bench) -> None:
    holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(Request(gpus=2))
    ask(other)
    desk.pass_time(3601)
    assert reads(holder) is None
    ask(other)
    desk.end(holder.process)
    desk.broker.end_kernel(desk.me, desk.server, holder.id)
    assert "it has ended" in reads(other).message


def test_nobody_answers_for_one_that_has_just_ended(desk: Bench) -> None:
    holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(Request(gpus=2))
    ask(other)
    notice = reads(holder)
    assert notice is not None
    desk.end(holder.process)
    desk.broker.end_kernel(desk.me, desk.server, holder.id)
    with pytest.raises(Conflict):
        desk.broker.asking.answer(desk.me, notice.id, Answer(minutes=5))


def test_next_broker_knows_what_is_asked_answered_and_how_often(desk: Bench) -> None:
    holder, one, two = (desk.kernel(f"{name}.ipynb") for name in "abc")
    holder.attach(Request(gpus=2))
    ask(one, "an hour?")
    before = reads(holder)
    desk.reopen()
    after = reads(holder)
    assert after is not None and after.message == before.message
    with pytest.raises(TooOften):
        ask(one)
    desk.broker.asking.answer(desk.me, after.id, Answer(message="soon"))
    desk.reopen()
    assert reads(holder) is None and reads(one).message.endswith("answers: soon.")
    with pytest.raises(TooOften):
        ask(two), "of the same user"
    desk.pass_time(600)
    desk.tick()
    ask(two)
    desk.end(holder.process)
    desk.broker.end_kernel(desk.me, desk.server, holder.id)
    desk.reopen()
    assert "it has ended" in reads(two).message
    desk.pass_time(3601)
    desk.tick()
    assert desk.broker.books.ledger.load().notes == ()


def test_message_does_nothing_to_a_terminal(desk: Bench) -> None:
    holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(Request(gpus=2))
    ask(other, "now?\x1b[2J\nor \u202e later")
    assert "now??[2J or ? later" in reads(holder).message
    with pytest.raises(OutOfRange):
        ask(other, "x" * 201)


def test_others_are_told_no_more_than_they_may_see(desk: Bench) -> None:
    holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
    holder.attach(Request(gpus=2))
    row = desk.broker.books.environments[holder.id]
    desk.broker.books.environments[holder.id] = msgspec.structs.replace(row, owner="local:4711")
    ask(other)
    [notice] = [it for it in desk.broker.notices(STRANGER) if it.kind == "ask"]
    assert "b.ipynb" not in notice.message and desk.me.name in notice.message
