"""Leases: set by an attach, extended, shown, announced; and no broker or clock moves their end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from traitlets.config import Config

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.errors import Conflict, OutOfRange
from genv_jupyter.model import EnvironmentPatch, Request
from genv_jupyter.notices import Notice
from tests.unit.brokers import HALF, WHOLE, Bench, Kernel, bench

HOUR = 3600
TWO_HOURS = msgspec.structs.replace(WHOLE, duration="2h")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def left(kernel: Kernel) -> float | None:
    """Seconds until the lease of a kernel ends, as everybody is shown it."""
    expires = kernel.now.expires
    return None if expires is None else expires.timestamp() - kernel.bench.clock.now


def extend(kernel: Kernel, duration: int | str) -> None:
    body = EnvironmentPatch(duration=duration)
    kernel.bench.broker.patch(kernel.bench.me, kernel.id, body)


def told(desk: Bench) -> list[Notice]:
    desk.tick()
    return [notice for notice in desk.broker.notices(desk.me) if notice.kind == "lease"]


def test_attach_without_a_duration_has_no_end(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    assert left(kernel) is None


def test_lease_begins_with_the_attach_and_runs(desk: Bench) -> None:
    kernel = desk.kernel()
    desk.pass_time(HOUR)
    kernel.attach(TWO_HOURS)
    assert left(kernel) == 2 * HOUR
    desk.pass_time(HOUR)
    assert left(kernel) == HOUR


def test_same_request_again_begins_the_lease_anew_and_another_replaces_it(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    desk.pass_time(HOUR)
    kernel.attach(TWO_HOURS)
    assert left(kernel) == 2 * HOUR and kernel.now.request == TWO_HOURS
    kernel.attach(msgspec.structs.replace(WHOLE, duration=60))
    assert left(kernel) == 60
    kernel.attach(WHOLE)
    assert left(kernel) is None and kernel.now.request == WHOLE


def test_refused_request_leaves_the_lease_as_it_was(desk: Bench) -> None:
    kernel, other = desk.kernel(), desk.kernel("b.ipynb")
    kernel.attach(TWO_HOURS)
    other.attach(HALF)
    with pytest.raises(Conflict):
        kernel.attach(Request(gpus=2, duration=5))
    assert left(kernel) == 2 * HOUR and kernel.now.request == TWO_HOURS


def test_extension_is_added_to_what_is_left(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    desk.pass_time(HOUR)
    extend(kernel, "1h")
    assert left(kernel) == 2 * HOUR


def test_lease_that_is_over_begins_anew_when_it_is_extended(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    desk.pass_time(5 * HOUR)
    assert left(kernel) == -3 * HOUR
    extend(kernel, HOUR)
    assert left(kernel) == HOUR


def test_there_is_nothing_to_extend_without_a_lease(desk: Bench) -> None:
    kernel = desk.kernel()
    with pytest.raises(Conflict, match="nothing is held"):
        extend(kernel, "1h")
    kernel.attach(HALF)
    with pytest.raises(Conflict, match="no end"):
        extend(kernel, "1h")
    assert left(kernel) is None


def test_lease_ends_with_what_it_is_of(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    kernel.detach()
    assert left(kernel) is None
    kernel.attach(HALF)
    assert left(kernel) is None


def test_part_that_is_given_back_leaves_the_lease_of_the_rest(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(Request(gpus=2, duration="2h"))
    desk.broker.detach(desk.me, kernel.id, device=desk.device(1))
    assert left(kernel) == 2 * HOUR


def test_neither_a_crash_nor_the_clock_moves_the_end(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    desk.pass_time(HOUR)
    desk.reopen()
    assert left(kernel) == HOUR
    desk.clock.now += 12 * HOUR  # somebody sets the clock right
    assert left(kernel) == HOUR
    desk.steady.now += HOUR / 2
    assert left(kernel) == HOUR / 2


def test_restart_keeps_the_lease_and_a_new_kernel_takes_it_over(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    kernel.restart()
    assert left(kernel) == 2 * HOUR
    heir = desk.kernel(previous=kernel.id)
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    assert heir.devices and left(heir) == 2 * HOUR


def test_lease_has_a_longest_time_that_extensions_do_not_evade(tmp_path: Path) -> None:
    config = BrokerConfig(Config({"Leases": {"longest": "2h"}}))
    with bench(tmp_path, config=config) as desk:
        kernel = desk.kernel()
        with pytest.raises(OutOfRange, match="3 h 00 min is longer"):
            kernel.attach(msgspec.structs.replace(WHOLE, duration="3h"))
        assert kernel.devices == []
        kernel.attach(TWO_HOURS)
        desk.pass_time(HOUR)
        with pytest.raises(OutOfRange, match="at most 2 h 00 min from now on"):
            extend(kernel, "61m")
        extend(kernel, "1h")
        assert left(kernel) == 2 * HOUR


def test_end_is_announced_some_minutes_before(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    desk.pass_time(2 * HOUR - 601)
    assert told(desk) == []
    desk.pass_time(1)
    [notice] = told(desk)
    assert (notice.environment, notice.level) == (kernel.id, "warning")
    assert "ends in 10 min" in notice.message and "%gpu extend 1h" in notice.hint
    assert notice.until == kernel.now.expires
    assert {"extend", "release"} <= set(notice.actions)


def test_short_lease_is_announced_in_its_last_fifth(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(msgspec.structs.replace(WHOLE, duration="10m"))
    desk.pass_time(479)
    assert told(desk) == []
    desk.pass_time(1)
    assert len(told(desk)) == 1


def test_announcement_goes_when_it_is_no_longer_true(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    desk.pass_time(2 * HOUR - 60)
    assert len(told(desk)) == 1
    extend(kernel, "2h")
    assert told(desk) == []
    desk.pass_time(2 * HOUR)
    assert len(told(desk)) == 1
    kernel.detach()
    assert told(desk) == []


def test_dismissed_announcement_comes_back_when_the_lease_is_over(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(TWO_HOURS)
    desk.pass_time(2 * HOUR - 60)
    [notice] = told(desk)
    desk.broker.dismiss(desk.me, notice.id)
    desk.pass_time(30)
    assert told(desk) == []
    desk.pass_time(90)
    [over] = told(desk)
    assert "is over since 1 min" in over.message
    assert over.until is not None and notice.until is not None
    assert over.until - notice.until <= timedelta(seconds=1)


@pytest.mark.parametrize("dry_run", [[], ["lease"]])
def test_announcement_says_what_the_rule_will_do(tmp_path: Path, dry_run: list[str]) -> None:
    rules = {"lease": "act", "lease_grace": "2m", "dry_run": dry_run}
    with bench(tmp_path, config=BrokerConfig(Config({"Rules": rules}))) as desk:
        kernel = desk.kernel()
        kernel.attach(TWO_HOURS)
        desk.pass_time(2 * HOUR - 60)
        [notice] = told(desk)
        assert ("restarted" in notice.message and "2 min" in notice.message) is (not dry_run)


# -- while somebody waits --------------------------------------------------------------------------


def waits(kernel: Kernel, request: Request = WHOLE) -> None:
    asked = msgspec.structs.replace(request, wait="1h")
    kernel.bench.broker.attach(kernel.bench.me, kernel.id, asked, cuda="not_initialized")
    assert kernel.now.state == "waiting"


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, "1x24GiB") as made:
        yield made


@pytest.mark.parametrize("over", [False, True])
def test_lease_is_not_extended_while_somebody_waits_for_what_is_held(
    one: Bench, over: bool
) -> None:
    holder, other = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(TWO_HOURS)
    one.pass_time(3 * HOUR if over else HOUR)
    waits(other)
    before = left(holder)
    for duration in (1, "1h"):  # a second at a time is no way around it
        with pytest.raises(
            Conflict, match=r"^b.ipynb of .+ waits for what is held here"
        ) as refusal:
            extend(holder, duration)
        assert "lease stays as it is" in refusal.value.hint and left(holder) == before
    one.broker.queue.leave(one.me, one.broker.tickets(one.me)[0].id)
    extend(holder, "1h")
    assert left(holder) == (HOUR if over else 2 * HOUR)


def test_same_request_again_does_not_move_the_end_past_somebody_who_waits(one: Bench) -> None:
    holder, other = one.kernel("a.ipynb"), one.kernel("b.ipynb")
    holder.attach(TWO_HOURS)
    one.pass_time(HOUR)
    waits(other)
    for again in (TWO_HOURS, WHOLE, msgspec.structs.replace(HALF, duration="8h")):
        holder.attach(again)  # Run All must work
        assert left(holder) == HOUR
    holder.attach(msgspec.structs.replace(HALF, duration="30m"))
    assert left(holder) == HOUR / 2, "sooner is welcome"


def test_lease_is_extended_where_nobody_would_wait_longer(desk: Bench) -> None:
    soon, late, other = (desk.kernel(f"{name}.ipynb") for name in "abc")
    soon.attach(msgspec.structs.replace(WHOLE, duration="1h"))
    late.attach(TWO_HOURS)
    waits(other)
    extend(late, "1h")
    assert left(late) == 3 * HOUR
    with pytest.raises(Conflict, match="waits"):
        extend(soon, "1h")


def test_whoever_runs_the_broker_may_let_leases_grow_all_the_same(tmp_path: Path) -> None:
    config = BrokerConfig(Config({"Leases": {"extend_while_awaited": True}}))
    with bench(tmp_path, "1x24GiB", config=config) as desk:
        holder, other = desk.kernel("a.ipynb"), desk.kernel("b.ipynb")
        holder.attach(TWO_HOURS)
        waits(other)
        extend(holder, "1h")
        assert left(holder) == 3 * HOUR


def test_who_waits_for_another_device_delays_no_extension(desk: Bench) -> None:
    first, second, other = (desk.kernel(f"{name}.ipynb") for name in "abc")
    first.attach(Request(devices=("0",), duration="1h"))
    second.attach(Request(devices=("1",)))
    waits(other, Request(devices=("1",)))
    extend(first, "1h")
    assert left(first) == 2 * HOUR
