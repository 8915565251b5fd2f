"""Quotas: which rule holds, what is counted, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traitlets.config import Config

from genv_jupyter import quotas
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.quotas import Quotas
from genv_jupyter.errors import BadRequest, Forbidden, OutOfRange, QuotaExceeded, UnknownQuota
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.model import EnvironmentPatch, Principal, Request
from genv_jupyter.quotas import Bound, QuotaLimits, bound_of, read_limits
from tests.unit.brokers import HALF, WHOLE, Bench, bench

WHOLE_DEVICE = 10_000
ADMIN = Principal(realm="local", id="4243", name="carol", admin=True)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def limit(desk: Bench, **said: object) -> None:
    """Configure a default quota."""
    desk.broker.core.config = BrokerConfig(Config({"QuotaSettings": {"default": said}}))
    assert desk.broker.core.config.problems == []


# -- which rule holds ---------------------------------------------------------------------------


def test_user_beats_group_and_the_most_generous_group_wins() -> None:
    rules = {
        "default": {"devices": 1, "memory": 5},
        "group:a": {"devices": 2},
        "group:b": {"devices": 3},
        "user:ann": {"devices": 1},
    }
    assert bound_of("devices", "ann", ("a", "b"), rules) == Bound(1, "user:ann")
    assert bound_of("devices", "bob", ("a", "b"), rules) == Bound(3, "group:b")
    assert bound_of("devices", "cat", (), rules) == Bound(1, "default")
    assert bound_of("memory", "ann", ("a",), rules) == Bound(5, "default")
    assert bound_of("queue", "ann", ("a",), rules) == Bound(None, None)


def test_no_bound_is_the_most_generous_of_all() -> None:
    rules = {"default": {"devices": 1}, "group:a": {"devices": 9}, "group:b": {"devices": None}}
    assert bound_of("devices", "bob", ("a", "b"), rules) == Bound(None, "group:b")


_limits = st.one_of(st.none(), st.integers(0, 100))


@given(st.dictionaries(st.sampled_from("abcdef"), _limits), st.sets(st.sampled_from("abcdef")))
def test_another_group_never_takes_anything_away(
    said: dict[str, int | None], groups: set[str]
) -> None:
    rules = {f"group:{name}": {"devices": value} for name, value in said.items()}
    have = bound_of("devices", "u", groups, rules)
    for more in "abcdef":
        then = bound_of("devices", "u", groups | {more}, rules)
        if have.rule is not None:
            assert then.limit is None or (have.limit is not None and then.limit >= have.limit)


def test_values_are_read_as_requests_are() -> None:
    said = QuotaLimits(
        devices=1.5, fraction=0.5, memory="4G", lease="8h", hours_day=2.5, environments=3, queue=0
    )
    assert read_limits(said) == {
        "devices": 15_000,
        "fraction": 5_000,
        "memory": 4 * 10**9,
        "lease": 8 * 3600,
        "hours_day": 9_000,
        "environments": 3,
        "queue": 0,
    }
    assert read_limits(QuotaLimits(devices=None)) == {"devices": None}


@pytest.mark.parametrize(
    "said",
    [
        {"devices": -1},
        {"devices": 0.00001},
        {"fraction": 1.5},
        {"memory": "much"},
        {"lease": "soon"},
        {"environments": 1.5},
        {"hours_day": float("nan")},
        {"hours_week": float("inf")},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_by_name(said: dict[str, object]) -> None:
    (name,) = said
    with pytest.raises((BadRequest, OutOfRange), match=f"^{name}: "):
        read_limits(QuotaLimits(**said))  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", ["", "lab", "group:", "user", "group", "root:x", "user:\n"])
def test_a_rule_is_for_somebody(scope: str) -> None:
    with pytest.raises(BadRequest):
        quotas.check_scope(scope)


# -- periods ------------------------------------------------------------------------------------


def test_periods_begin_anew_in_their_zone_also_when_clocks_change() -> None:
    now = datetime(2026, 3, 29, 12, 0, tzinfo=BERLIN)  # a Sunday; at 2:00 it became 3:00
    assert quotas.began("hours_day", now) == datetime(2026, 3, 29, 0, 0, tzinfo=BERLIN)
    assert quotas.resets("hours_day", now) == datetime(2026, 3, 30, 0, 0, tzinfo=BERLIN)
    day = quotas.resets("hours_day", now).timestamp() - quotas.began("hours_day", now).timestamp()
    assert day == 23 * 3600
    assert quotas.began("hours_week", now) == datetime(2026, 3, 23, 0, 0, tzinfo=BERLIN)
    assert quotas.resets("hours_week", now) == datetime(2026, 3, 30, 0, 0, tzinfo=BERLIN)
    assert quotas.began("hours_month", now) == datetime(2026, 3, 1, 0, 0, tzinfo=BERLIN)
    december = datetime(2026, 12, 31, 23, 59, tzinfo=BERLIN)
    assert quotas.resets("hours_month", december) == datetime(2027, 1, 1, 0, 0, tzinfo=BERLIN)


# -- what is refused ----------------------------------------------------------------------------


def test_half_a_device_counts_half(desk: Bench) -> None:
    limit(desk, devices=1.5)
    first, second, third = desk.kernel(), desk.kernel(), desk.kernel()
    first.attach(WHOLE)
    second.attach(HALF)
    with pytest.raises(QuotaExceeded) as refused:
        third.attach(Request(fraction=0.1))
    assert refused.value.status == 403
    assert refused.value.details == {
        "quantity": "devices",
        "used": 1.5,
        "asked": 0.1,
        "limit": 1.5,
        "left": 0.0,
        "rule": "default",
        "reset": None,
    }
    assert "You have 1.5 devices and asked for 0.1 devices; you may have 1.5" in str(refused.value)
    second.attach(Request(fraction=0.4))  # what it has itself is not counted twice
    third.attach(Request(fraction=0.1))


@pytest.mark.parametrize(
    ("said", "fits", "too_much"),
    [
        ({"devices": 1}, Request(gpus=1), Request(gpus=2)),
        ({"memory": "8GiB"}, Request(memory="8GiB"), Request(memory="9GiB")),
        ({"memory": "12GiB"}, HALF, WHOLE),
        ({"fraction": 0.5}, HALF, Request(fraction=0.6)),
        ({"fraction": 0.5}, WHOLE, Request(memory="13GiB")),
        ({"environments": 1}, HALF, None),
        ({"lease": "1h"}, Request(fraction=0.5, duration="1h"), Request(gpus=1, duration="2h")),
        ({"environments": 0}, None, HALF),
    ],
    ids=str,
)
def test_each_quantity_is_bounded(
    desk: Bench, said: dict[str, object], fits: Request | None, too_much: Request | None
) -> None:
    limit(desk, **said)
    kernel = desk.kernel()
    if fits is not None:
        kernel.attach(fits)
    before = kernel.now.grants
    if too_much is not None:
        with pytest.raises(QuotaExceeded):  # the dry run says the same
            desk.broker.place(desk.me, too_much, kernel.id)
    with pytest.raises(QuotaExceeded) as refused:
        if too_much is None:
            desk.kernel().attach(HALF)
        else:
            kernel.attach(too_much)
    assert refused.value.details["quantity"] == next(iter(said))
    assert kernel.now.grants == before, "a refusal changes nothing"


def test_who_asks_for_no_lease_has_the_longest_there_may_be(desk: Bench) -> None:
    limit(desk, lease="1h")
    kernel = desk.kernel()
    kernel.attach(HALF)
    assert (kernel.now.expires - desk.broker.core.stamp()).total_seconds() == pytest.approx(3600)
    with pytest.raises(QuotaExceeded):
        desk.broker.patch(desk.me, kernel.id, EnvironmentPatch(duration="30m"))
    desk.pass_time(1800)
    desk.broker.patch(desk.me, kernel.id, EnvironmentPatch(duration="30m"))


def test_places_in_the_queue_are_bounded(desk: Bench) -> None:
    limit(desk, queue=1)
    for _ in range(2):
        desk.kernel().attach(WHOLE)
    waiting = Request(gpus=1, wait="1h")
    first = desk.kernel()
    first.attach(waiting, cuda="unknown")
    first.attach(waiting, cuda="unknown")  # the same place
    with pytest.raises(QuotaExceeded, match="place in the queue"):
        desk.kernel().attach(waiting, cuda="unknown")


def test_a_quota_is_of_a_user_and_not_of_a_server(desk: Bench) -> None:
    limit(desk, devices=1)
    desk.kernel().attach(WHOLE)
    desk.server = "00000000-0000-4000-8000-000000000001"
    desk.register()
    with pytest.raises(QuotaExceeded):
        desk.kernel().attach(HALF)


def test_lowering_a_quota_takes_nothing_at_once(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    limit(desk, devices=0.5)
    desk.tick(1)
    assert len(kernel.devices) == 1
    assert desk.broker.rules.quota_of(desk.me.key).devices == 5_000, "the rules are told"
    kernel.attach(WHOLE)  # what is there already is no new request
    with pytest.raises(QuotaExceeded):
        kernel.attach(Request(gpus=2))


# -- rules that are set -------------------------------------------------------------------------


@pytest.fixture
def kept(desk: Bench, tmp_path: Path) -> Iterator[Bench]:
    """A broker whose records are there."""
    records = RecordsLedger(tmp_path / "records.sqlite")
    records.open()
    desk.broker.core.quotas = Quotas(desk.broker.core, records)
    yield desk
    records.close()


def test_what_is_set_comes_before_the_configuration_and_outlives_the_broker(kept: Bench) -> None:
    limit(kept, devices=0)
    rules = kept.broker.core.quotas.rules
    with pytest.raises(QuotaExceeded):
        kept.kernel().attach(HALF)
    rules.set(ADMIN, "default", QuotaLimits(devices=1))
    kept.kernel().attach(HALF)
    (rule,) = rules.listed(ADMIN)
    assert (rule.scope, rule.source, rule.by, rule.limits.devices) == ("default", "set", "carol", 1)
    again = Quotas(kept.broker.core, rules.records)
    assert again.rules.bound("devices", kept.me.key) == Bound(WHOLE_DEVICE, "default")
    rules.unset(ADMIN, "default")
    assert rules.bound("devices", kept.me.key) == Bound(0, "default")
    with pytest.raises(UnknownQuota):
        rules.unset(ADMIN, "default")


def test_only_administrators_see_and_set_rules(kept: Bench) -> None:
    quotas_ = kept.broker.core.quotas
    kept.broker.core.kind = "host"
    for call in (
        lambda: quotas_.rules.listed(kept.me),
        lambda: quotas_.rules.set(kept.me, "user:x", QuotaLimits(devices=9)),
        lambda: quotas_.rules.unset(kept.me, "default"),
        lambda: quotas_.whose(kept.me, "nobody"),
    ):
        with pytest.raises(Forbidden):
            call()
    assert quotas_.whose(kept.me, None) is kept.me
    assert quotas_.whose(ADMIN, "root").id == "0"


def test_hours_are_those_of_the_history(kept: Bench) -> None:
    from genv_jupyter.ledger.samples import GrantSample, Holder, Samples, put
    from genv_jupyter.rollup import GrantSums

    core = kept.broker.core
    records = core.quotas.records
    kernel = kept.kernel()
    at = int(core.clock()) // 60 * 60
    sums = GrantSums(held=3_600_000, share=3_600_000 * 5_000)  # an hour of half a device
    holder = Holder(environment=kernel.id, owner=kept.me.key, user="me", name=None, seen=at)
    samples = tuple(
        GrantSample(step, at - at % step, kernel.id, kept.device(0), sums) for step in (60, 3600)
    )
    records.run(lambda it: put(it, Samples(now=at, grants=samples, holders=(holder,))))

    class Nothing:
        def pending(self) -> tuple[dict, dict, dict]:  # type: ignore[type-arg]
            return {}, {}, {}

        def take(self, *_: object, **__: object) -> None: ...

        def close(self, clock: float) -> None: ...

    core.history = Nothing()
    core.quotas.add_up()
    view = {it.quantity: it for it in core.quotas.view(kept.me).quantities}
    assert view["hours_day"].used == 0.5 and view["hours_day"].limit is None
    limit(kept, hours_day=0.5)
    view = {it.quantity: it for it in core.quotas.view(kept.me).quantities}
    assert (view["hours_day"].left, view["hours_day"].rule) == (0, "default")
    assert view["hours_day"].reset > core.stamp()
    with pytest.raises(QuotaExceeded, match=r"0\.5 GPU hours of 0\.5 GPU hours today"):
        kernel.attach(HALF)
    assert core.quotas.most(kept.me.key) == (0, None)
    limit(kept, hours_day=0.6)
    kernel.attach(HALF)


def test_the_function_of_the_configuration_is_asked_and_may_fail(desk: Bench) -> None:
    said: list[object] = [{"devices": 0}]

    def quota_for(name: str, groups: tuple[str, ...]) -> object:
        assert isinstance(name, str) and isinstance(groups, tuple)
        return said[0]

    settings = {"QuotaSettings": {"quota_for": quota_for, "default": {"devices": 2}}}
    desk.broker.core.config = BrokerConfig(Config(settings))
    with pytest.raises(QuotaExceeded) as refused:
        desk.kernel().attach(HALF)
    assert refused.value.details["rule"] == "quota_for"
    rules = desk.broker.core.quotas.rules
    said[0] = {"devices": "nonsense"}
    rules._hooked = {key: (float("-inf"), it) for key, (_, it) in rules._hooked.items()}
    assert rules.bound("devices", desk.me.key).limit == 0, "what it said before holds on"
    said[0] = None
    rules._hooked.clear()
    assert rules.bound("devices", desk.me.key) == Bound(2 * WHOLE_DEVICE, "default")


def test_a_configuration_with_mistakes_is_told() -> None:
    made = BrokerConfig(
        Config(
            {
                "QuotaSettings": {
                    "default": {"device": 1},
                    "groups": {"lab": {"memory": "much"}},
                    "users": {"ann": 3},
                    "timezone": "Europe/Nowhere",
                    "quota_for": 3,
                }
            }
        )
    )
    told = "\n".join(made.problems)
    assert len(made.problems) == 5
    for said in ("device", "'much'", "ann", "Europe/Nowhere", "no function"):
        assert said in told


def test_nothing_is_bounded_without_a_rule(desk: Bench) -> None:
    desk.kernel().attach(Request(gpus=2))
    assert desk.broker.core.quotas.most(desk.me.key) is None
    assert all(it.limit is None for it in desk.broker.core.quotas.view(desk.me).quantities)
