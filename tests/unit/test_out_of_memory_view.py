"""What the block under an out-of-memory error says in each situation."""

from __future__ import annotations

import sys
import threading
import types
from datetime import UTC, datetime
from typing import Any

import pytest

from genv_jupyter.kernel import oom
from genv_jupyter.kernel.memory_errors import Failure
from genv_jupyter.kernel.oom import Facts, Torch
from genv_jupyter.kernel.oom_view import OutOfMemoryView
from genv_jupyter.model import (
    Device,
    DeviceGrant,
    Environment,
    Grant,
    Limit,
    Limits,
    Process,
)

GIB = 2**30
NOW = datetime(2026, 1, 1, tzinfo=UTC)
GPU, SECOND = "GPU-00000000-aaaa", "GPU-11111111-bbbb"
MINE = "11111111-2222-4333-8444-555555555555"


def limits(strength: Any) -> Limits:
    limit = Limit(strength=strength)
    return Limits(memory=limit, compute=limit, devices=limit)


def grant(memory: int, *, exclusive: bool = False, strength: Any = "cooperative") -> Grant:
    return Grant(
        device=GPU,
        memory=memory * GIB,
        compute=None,
        exclusive=exclusive,
        state="granted",
        applied="live",
        limits=limits(strength),
        since=NOW,
    )


def device(
    used: int | None,
    *others: tuple[str, int],
    mine: int = 0,
    external: int = 0,
    unattributed: int = 0,
    uuid: str = GPU,
    total: int | None = 24,
) -> Device:
    every = [(MINE, "me", mine)] if mine else []
    every += [(f"other-{name}", name, memory) for name, memory in others]
    return Device(
        uuid=uuid,
        index=0 if uuid == GPU else 1,
        name="Fake",
        kind="gpu",
        parent=None,
        memory_total=None if total is None else total * GIB,
        memory_usable=None if total is None else total * GIB,
        memory_used=None if used is None else used * GIB,
        utilization=None,
        health="ok",
        simulated=False,
        grants=tuple(
            DeviceGrant(
                environment=environment,
                user="ada",
                name=name,
                memory=memory * GIB,
                compute=None,
                exclusive=False,
                state="granted",
                since=NOW,
            )
            for environment, name, memory in every
        ),
        external_memory=external * GIB,
        unattributed_memory=unattributed * GIB,
    )


def environment(*grants: Grant, processes: tuple[Process, ...] = (), **changes: Any) -> Environment:
    facts: dict[str, Any] = {
        "id": MINE,
        "previous": None,
        "user": "me",
        "kind": "kernel",
        "name": None,
        "path": None,
        "server": "server",
        "kernel_state": "busy",
        "idle_since": None,
        "request": None,
        "pending": None,
        "grants": grants,
        "state": "granted",
        "applied": "live",
        "created": NOW,
        "expires": None,
        "cuda": "initialized",
        "reason": None,
        "pid": 100,
        "processes": processes,
    }
    return Environment(**{**facts, **changes})


def said(facts: Facts, asked: int | None = None) -> str:
    failure = Failure("PyTorch", "memory", asked, True, RuntimeError())
    view = OutOfMemoryView(failure, facts)
    assert max(map(len, str(view).splitlines())) <= 80
    assert "<div" in view._repr_html_()
    return " ".join(str(view).split())


CAP = environment(grant(12))


def test_larger_cap_is_offered_only_where_there_is_room() -> None:
    full = device(24, ("llm", 12), mine=12)
    found = said(Facts(CAP, (full,), {GPU: 12 * GIB}))
    assert "no device has room for a larger one, unless llm can give up some" in found
    assert "attach --memory" not in found
    found = said(Facts(CAP, (full, device(0, uuid=SECOND)), {GPU: 12 * GIB}))
    assert "for which there is room: `%gpu attach --memory 17G --restart`" in found


def test_what_was_asked_for_is_in_the_offer() -> None:
    found = said(Facts(CAP, (device(8, mine=12),), {GPU: 8 * GIB}), asked=8 * GIB)
    assert "8 GiB more were asked for" in found
    assert "`%gpu attach --memory 19G --restart`" in found, "8 + 8 and a tenth: more than 12"


@pytest.mark.parametrize(("kind", "word"), [("kernel", "the kernel"), ("shell", "IPython")])
def test_where_nobody_restarts_for_us(kind: Any, word: str) -> None:
    alone = environment(grant(12), kind=kind, server=None)
    facts = Facts(alone, (device(12, mine=12),), {GPU: 12 * GIB}, terminal=kind == "shell")
    found = said(facts)
    assert f"restart {word}, and first `%gpu attach --memory" in found
    assert "--restart" not in found


def test_whole_device() -> None:
    whole = environment(grant(24, exclusive=True))
    found = said(Facts(whole, (device(24, mine=24),), {GPU: 24 * GIB}))
    assert "All of the device was in use by this kernel alone" in found
    assert "attach --memory" not in found


def test_external_and_unexplained_memory_are_named_apart() -> None:
    full = device(24, mine=12, external=18, unattributed=2)
    found = said(Facts(CAP, (full,), {GPU: 4 * GIB}))
    assert "18 GiB of external processes" in found
    assert "External processes hold 18 GiB: `nvidia-smi` names them" in found
    assert "2 GiB are held where nothing can be seen" in found


def test_holder_above_its_cap_is_named_and_one_within_is_not_blamed() -> None:
    facts = Facts(CAP, (device(24, ("llm", 12), mine=12),), {GPU: 4 * GIB})
    assert "llm (ada) uses 20 GiB, and has a cap of 12 GiB: more than was given" in said(facts)
    facts = Facts(CAP, (device(16, ("llm", 12), mine=12),), {GPU: 4 * GIB})
    assert "Ask llm (ada) whether some can be given up" in said(facts)


def test_nobody_is_blamed_where_the_device_is_not_full() -> None:
    half = device(10, ("llm", 12), mine=12)
    for asked in (None, 4 * GIB):
        found = said(Facts(CAP, (half,), {GPU: 4 * GIB}), asked)
        assert "a framework's own limit may be lower" in found and "others who" not in found
    two = device(20, ("llm", 12), mine=12)
    assert "others who have filled it" in said(Facts(CAP, (two,), {GPU: 1 * GIB}), 5 * GIB)


def test_own_processes_besides_the_kernel_are_named() -> None:
    child = Process(pid=200, start=1, device=GPU, memory=6 * GIB, name="python")
    kernel = Process(pid=100, start=1, device=GPU, memory=2 * GIB, name="python")
    wrapped = environment(grant(12), processes=(kernel, child))
    found = said(Facts(wrapped, (device(8, mine=12),), {GPU: 8 * GIB}, pid=100))
    assert "python (pid 200), started from here, holds 6 GiB" in found and "`!kill 200`" in found
    assert "pid 100" not in found
    found = said(Facts(wrapped, (device(8, mine=12),), {GPU: 8 * GIB}))  # in a container
    assert "python (pid 200 of the host), started from here" in found and "kill" not in found


def test_what_nobody_knows_is_said_as_unknown() -> None:
    blind = device(None, mine=12, total=None)
    found = said(Facts(CAP, (blind,), {GPU: None}))
    assert "not known" in found and "0 B" not in found and "None" not in found
    found = said(Facts(silent="It did not answer."))
    assert "It did not answer. So who else is on the device is not known." in found
    assert "%gpu empty-cache" in found


def test_limit_that_nothing_enforces_is_called_that() -> None:
    found = said(Facts(environment(grant(12, strength="none")), (device(20),), {GPU: 20 * GIB}))
    assert "of a cap of 12 GiB, which nothing enforces" in found


def test_number_of_torch_is_used_on_one_device_only() -> None:
    torch = Torch(allocated=8 * GIB, reserved=11 * GIB)
    facts = Facts(CAP, (device(3, mine=12),), {GPU: 3 * GIB}, torch=torch)
    assert "here 11 GiB" in said(facts), "newer than the reading"
    two = environment(grant(12), grant(12))
    assert "here 3 GiB" in said(facts._replace(environment=two))
    assert "3 GiB in PyTorch's cache" in said(facts)


def test_broker_that_answers_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late = threading.Event()

    def ask(shell: object) -> Facts:
        late.wait(20)  # several answers, each within its own time limit
        return Facts()

    monkeypatch.setattr(oom, "_ask", ask)
    found = oom.gather(None)
    late.set()
    assert found.silent == "The GPU broker did not answer within 1 s."


def test_broken_numbers_of_torch_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise RuntimeError("half imported")

    cuda = types.SimpleNamespace(is_initialized=fail)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert oom.torch_memory() is None
    cuda.is_initialized = lambda: False
    assert oom.torch_memory() is None, "it would initialise CUDA"


def test_blocks_are_short() -> None:
    many = device(24, *((f"kernel-{number}", 1) for number in range(9)), mine=12)
    found = said(Facts(CAP, (many,), {GPU: 4 * GIB}))
    assert "and 5 more: `%gpu devices`" in found
