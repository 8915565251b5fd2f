"""`%gpu usage`: the advice, line by line, and the view: never a number that nobody knows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from genv_jupyter.advice import GIVE_BACK, Holding, advice
from genv_jupyter.kernel import parsing
from genv_jupyter.kernel.usage import UsageView
from genv_jupyter.model import EnvironmentUsage, GrantUsage
from tests.unit.test_magic_views import UUIDS, device, environment

GIB = 2**30
USABLE = 24 * GIB


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


def used(peak: float | None, cap: float = 12, **facts: Any) -> GrantUsage:
    """Return a grant's usage, memory in GiB, after an hour of use of a busy device."""
    memory = None if peak is None else int(peak * GIB)
    plain = GrantUsage(
        device=UUIDS[0],
        memory=int(cap * GIB),
        memory_used=memory,
        memory_peak=memory,
        peak_since=ago(hours=1),
        seconds_used=3600,
        since=ago(hours=1),
        utilization=80,
        utilization_mean=80,
        utilization_max=100,
        utilization_seconds=300,
    )
    return msgspec.structs.replace(plain, **facts)


def holding(usage: GrantUsage, **facts: Any) -> Holding:
    plain = Holding(
        label="GPU 0", usage=usage, usable=USABLE, exclusive=False, compute=5000, held=3600
    )
    return msgspec.structs.replace(plain, **facts)


QUIET = {"utilization_mean": 10}
WHOLE: dict[str, Any] = {"exclusive": True, "compute": None}
ANY: dict[str, Any] = {"compute": None}
TWO = {"device": UUIDS[1]}


@pytest.mark.parametrize(
    ("holdings", "said"),
    [
        ([], "%gpu attach 0.5 takes half of a GPU."),
        ([holding(used(None))], "does not tell which memory"),
        ([holding(used(3)), holding(used(None))], "does not tell which memory"),
        ([holding(used(0), held=60)], "Nothing has been used yet."),
        ([holding(used(0), held=GIVE_BACK)], "Nothing has been used for 30 min: %gpu release g"),
        (
            [holding(used(3, **QUIET)), holding(used(0, **TWO), label="GPU 1")],
            "GPU 1 has not been used for 1 h 00 min: %gpu release --device GPU-22222222 gives",
        ),
        (
            [holding(used(3)), holding(used(0, **TWO), label="GPU 1", held=60)],
            "Nothing of GPU 1 has been used yet.",
        ),
        # close to the cap
        ([holding(used(11.9))], "99 % of the amount. Out of memory? A smaller batch size makes"),
        ([holding(used(10.9))], "or ask for more."),
        ([holding(used(11.9, seconds_used=10))], "batch size"),  # this needs no waiting
        ([holding(used(23.9, cap=24), **WHOLE)], "batch size makes room."),
        ([holding(used(10.7))], "The amount fits"),
        # the cap is much larger than the peak
        ([holding(used(3, **QUIET))], "3 GiB of 12 GiB: 0.15 would do (%gpu attach 0.15)."),
        ([holding(used(5.9, **QUIET))], "0.3 would do (%gpu attach 0.3)."),
        ([holding(used(5.9))], "7.7G would do (%gpu attach 0.5 --memory 7.7G)."),  # it computes
        ([holding(used(5.9, utilization_mean=None))], "7.7G would do (%gpu attach 0.5 --m"),
        ([holding(used(5.9, **QUIET), usable=None)], "would do (%gpu attach 0.5 --memory 7.7G)."),
        ([holding(used(3, cap=10), **ANY)], "3.9G would do (%gpu attach --memory 3.9G)."),
        ([holding(used(0.001, cap=4), **ANY)], "0.6G would do"),
        (
            [holding(used(3, cap=10), **ANY), holding(used(1, cap=10, **TWO), **ANY)],
            "3.9G would do (%gpu attach 2 --memory 3.9G).",
        ),
        ([holding(used(7.4, **QUIET))], "0.37 would do"),
        ([holding(used(7.6, **QUIET))], "The amount fits"),
        ([holding(used(3, seconds_used=299, **QUIET))], "Advice comes after 5 min of use"),
        ([holding(used(3, seconds_used=None, **QUIET))], "Advice comes after 5 min of use"),
        # a whole device that idles
        ([holding(used(3, cap=24, **QUIET), **WHOLE)], "you can share it (%gpu attach 0.5)."),
        ([holding(used(3, cap=24), **WHOLE)], "The amount fits"),  # it computes
        ([holding(used(3, cap=24, utilization_mean=None), **WHOLE)], "The amount fits"),
        ([holding(used(13, cap=24, **QUIET), **WHOLE)], "The amount fits"),  # not in a half
        ([holding(used(3, cap=24, utilization_seconds=60, **QUIET), **WHOLE)], "The amount fits"),
        ([holding(used(3, cap=24, **QUIET), usable=None, **WHOLE)], "The amount fits"),
    ],
)
def test_advice(holdings: list[Holding], said: str) -> None:
    found = advice(holdings)
    assert said in found
    assert "\n" not in found
    assert ("would do" in found or "can share" in found) == ("would do" in said or "share" in said)


@pytest.mark.parametrize("peak", [0.001, 0.7, 3, 5.9, 7.4])
@pytest.mark.parametrize("load", [10, 80])
def test_what_is_advised_can_be_typed_and_has_room_for_the_peak(peak: float, load: int) -> None:
    said = advice([holding(used(peak, utilization_mean=load))])
    line = said.partition("(%gpu ")[2].partition(")")[0]
    request = parsing.read(line).request
    if request.memory is not None:
        memory = float(str(request.memory).removesuffix("G")) * 1e9
    else:
        memory = (request.fraction or 0) * USABLE
    assert int(peak * GIB * 1.2) <= memory + 16 and memory <= 12 * GIB


def test_nothing_is_advised_on_simulated_devices() -> None:
    assert "are simulated" in advice([holding(used(0))], simulated=True)


def view(usage: GrantUsage, **facts: Any) -> UsageView:
    whole = EnvironmentUsage(environment="x", at=ago(), simulated=False, grants=(usage,))
    whole = msgspec.structs.replace(whole, **facts)
    return UsageView(environment(name="llm.ipynb"), whole, [device()])


def test_view_says_used_cap_peak_and_whose_load_it_is() -> None:
    text = repr(view(used(3, memory_used=GIB)))
    assert "This notebook (llm.ipynb): used of what it has" in text
    assert "1 GiB of 12 GiB, peak 3 GiB" in text
    assert "The device is 80 % busy, whoever uses it; 80 % on average and 100 % at most" in text
    assert "[##---" in text, "a bar of one twelfth"
    assert max(map(len, text.splitlines())) <= 80
    assert "1 GiB of 12 GiB" in view(used(3, memory_used=GIB))._repr_html_()


def test_what_drains_is_said() -> None:
    drained = environment(reason="Released, and still in use.")
    (grant,) = drained.grants
    grants = (msgspec.structs.replace(grant, state="draining"),)
    drained = msgspec.structs.replace(drained, grants=grants, state="draining")
    usage = EnvironmentUsage(
        environment="x", at=ago(), simulated=False, grants=(used(3),), advice="Still in use."
    )
    shown = UsageView(drained, usage, [device()])
    assert "GPU 0, draining" in repr(shown)
    assert "Still in use." in repr(shown)


def test_view_says_what_is_unknown() -> None:
    text = repr(view(used(None, utilization=None, utilization_mean=None)))
    assert "use unknown, of 12 GiB" in text and "peak unknown" in text
    assert "How busy the device is, the driver does not say." in text
    assert "0 GiB" not in text and "nothing" not in text and "None" not in text


def test_view_says_since_when_a_peak_is_known() -> None:
    later = used(3, peak_since=ago(minutes=5))
    assert "(seen since " in repr(view(later)) and "(5 min))" in repr(view(later))
    assert "seen since" not in repr(view(used(3)))


def test_view_without_a_grant_and_of_simulated_devices() -> None:
    assert "has no grant" in repr(UsageView(None, None, []))
    text = repr(view(used(0), simulated=True, advice="Nothing to advise."))
    assert "SIMULATED" in text and "Nothing to advise." in text
