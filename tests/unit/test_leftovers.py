"""Processes that outlive their kernels: shown to their owner, and ended as those very ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.broker import leaving
from genv_jupyter.broker.leftovers import LeftoverSettings
from genv_jupyter.broker.service import Broker
from genv_jupyter.devices.simulated import SimulatedSource
from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.errors import NotYours, UnknownProcess
from genv_jupyter.isolation import evidence, processes
from genv_jupyter.isolation.environ import MARKER
from genv_jupyter.ledger.live import LiveLedger
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.leftovers import Leftover
from genv_jupyter.model import Principal
from tests.unit.brokers import GIB, HALF, Bench, Kernel, bench

OTHER = Principal(realm="local", id="4242", name="someone")
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
STUBBORN += "time.sleep(600)"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def child(desk: Bench, environment: str, code: str | None = None) -> int:
    """Start a process that carries the marker of an environment, as its child does."""
    made = subprocess.Popen(
        ["sleep", "600"] if code is None else [sys.executable, "-c", code],
        env={**os.environ, MARKER: environment},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    desk.children.append(made)
    assert made.stdout is not None
    if code is not None:
        made.stdout.readline()
    made.stdout.close()
    while processes.marker(made.pid) is None:  # on its way into the program
        pass
    return made.pid


def uses(desk: Bench, pid: int, memory: int | None = GIB, number: int = 0) -> None:
    listed = desk.source.devices[number].processes
    assert listed is not None
    listed.append(ProcessReading(pid, memory, "compute"))


def left_by(desk: Bench, code: str | None = None) -> tuple[Kernel, int]:
    """Start a kernel with a child on the first device, and shut the kernel down."""
    kernel = desk.kernel(path="work/train.ipynb")
    kernel.attach(HALF)
    pid = child(desk, kernel.id, code)
    uses(desk, pid)
    desk.tick(1)
    assert [it.pid for it in kernel.now.processes or ()] == [pid]
    assert desk.broker.leftovers(desk.me) == [], "its kernel lives"
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.tick(1)
    return kernel, pid


def only(desk: Bench) -> Leftover:
    (left,) = desk.broker.leftovers(desk.me)
    return left


def ended(desk: Bench, pid: int) -> int:
    """Wait for a process of the test, and return the signal that ended it."""
    (made,) = (it for it in desk.children if it.pid == pid)
    return -made.wait(10)


def test_child_of_a_kernel_that_is_gone_is_a_leftover_with_its_name(desk: Bench) -> None:
    kernel, pid = left_by(desk)
    left = only(desk)
    assert (left.pid, left.start) == (pid, processes.start_of(pid))
    assert (left.environment, left.name, left.after) == (kernel.id, "train.ipynb", "ended")
    assert [(use.device, use.memory) for use in left.uses] == [(desk.device(0), GIB)]
    device = desk.broker.devices()[0]
    assert device.external_memory == GIB, "and its memory is not free"
    (notice,) = desk.broker.notices(desk.me)
    assert notice.user == desk.me.name
    assert notice.kind == "leftover"
    assert "train.ipynb outlived its kernel and holds 1 GiB on GPU 0" in notice.message


def test_child_from_before_a_restart_is_a_leftover_of_a_living_environment(desk: Bench) -> None:
    kernel = desk.kernel()
    kernel.attach(HALF)
    pid = child(desk, kernel.id)
    uses(desk, pid)
    desk.tick(1)
    while processes.age(processes.start_of(pid) or 0) < 0.05:  # it is older by its ticks, too
        pass
    kernel.restart()
    late = child(desk, kernel.id)
    uses(desk, late)
    desk.tick(1)
    left = only(desk)
    assert (left.pid, left.environment, left.after) == (pid, kernel.id, "restarted")
    assert {it.pid for it in kernel.now.processes or ()} == {pid, late}, "it still counts there"


def test_leftover_is_ended_and_that_is_recorded(desk: Bench) -> None:
    _, pid = left_by(desk)
    recorded: list[str] = []
    desk.broker.core.leftovers.core.record = lambda event, row, **more: recorded.append(event)
    left = only(desk)
    assert desk.broker.end_process(desk.me, left.pid, left.start).state == "ending"
    assert ended(desk, pid) == signal.SIGTERM
    desk.broker.end_process(desk.me, left.pid, left.start)
    assert recorded == ["LeftoverEnded"], "once, though asked twice"
    desk.source.devices[0].processes = []
    desk.tick(1)
    assert desk.broker.leftovers(desk.me) == []
    assert desk.broker.notices(desk.me) == []


def test_leftover_that_does_not_listen_is_killed_after_its_time(desk: Bench) -> None:
    _, pid = left_by(desk, STUBBORN)
    left = only(desk)
    desk.broker.end_process(desk.me, left.pid, left.start)
    desk.tick(1)
    assert processes.alive(pid, left.start)
    desk.tick(LeftoverSettings().patience)
    assert ended(desk, pid) == signal.SIGKILL


def act(desk: Bench, seconds: float) -> None:
    desk.tick(seconds)
    desk.broker.tick_rules()


def test_leftover_that_is_ended_by_itself_is_taken_off_mps_first(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pid = left_by(desk)
    bound_to_end(desk, monkeypatch)
    seen: list[tuple[tuple[str, ...], bool]] = []

    def leave(core: object, devices: tuple[str, ...], which: int) -> None:
        seen.append((tuple(devices), processes.alive(which, None)))

    monkeypatch.setattr(leaving, "leave_one", leave)
    desk.broker.tick_rules()
    assert ended(desk, pid) == signal.SIGTERM
    assert seen == [((desk.device(0),), True)], "others on the device are not harmed"


def test_leftover_is_asked_once_and_killed_once(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by(desk)
    left, sent = only(desk), list[int]()
    monkeypatch.setattr(
        desk.broker.core.powers, "order", lambda pid, start, number, *, uid: sent.append(number)
    )
    for _ in range(2):
        desk.broker.end_process(desk.me, left.pid, left.start)
    for _ in range(3):
        desk.tick(LeftoverSettings().patience)
    assert sent == [signal.SIGTERM, signal.SIGKILL]


def test_by_default_nothing_is_ended_by_itself_and_with_end_it_is(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pid = left_by(desk)
    desk.tick(86_400)
    assert only(desk).until is None
    assert processes.alive(pid, only(desk).start)
    settings = LeftoverSettings(action="end", grace=60)
    monkeypatch.setattr(type(desk.broker.core.leftovers), "settings", settings)
    desk.broker.core.leftovers._entries.clear()
    desk.tick(1)
    until = only(desk).until
    assert until is not None
    assert (until - only(desk).left).total_seconds() == 60
    act(desk, 59)
    assert only(desk).state == "running"
    act(desk, 1)
    assert ended(desk, pid) == signal.SIGTERM


def bound_to_end(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LeftoverSettings(action="end", grace=0, patience=0)
    monkeypatch.setattr(type(desk.broker.core.leftovers), "settings", settings)


@pytest.mark.parametrize("step", ["by hand", "by itself", "killed"])
def test_leftover_that_runs_as_somebody_else_is_never_ended(
    desk: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A program of another user's rights (sudo) stays in the family of the kernel it is from."""
    _, pid = left_by(desk, STUBBORN)
    left = only(desk)
    if step == "killed":
        desk.broker.end_process(desk.me, pid, left.start)
    monkeypatch.setattr(evidence, "uids", lambda pid: (os.getuid(), 4711, 4711, 4711))
    if step == "by hand":
        off: list[int] = []
        monkeypatch.setattr(leaving, "leave_one", lambda core, devices, pid: off.append(pid))
        with pytest.raises(NotYours, match="runs as another user"):
            desk.broker.end_process(desk.me, pid, left.start)
        assert off == [], "nor is its work undone under MPS"
    else:
        bound_to_end(desk, monkeypatch)
    act(desk, 1)
    act(desk, 60)
    assert processes.alive(pid, left.start)
    if step == "by itself":
        assert only(desk).until is None and only(desk).state == "running"
        (notice,) = desk.broker.notices(desk.me)
        assert "will be ended" not in notice.message and notice.until is None


def test_of_several_leftovers_it_is_said_which_go(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pid = left_by(desk)
    kernel = desk.kernel()
    kernel.attach(HALF)
    server = child(desk, kernel.id)
    desk.source.devices[0].processes.append(  # type: ignore[union-attr]
        ProcessReading(server, GIB, "compute", name="nvidia-cuda-mps-server")
    )
    desk.tick(1)
    desk.end(kernel.process)
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    settings = LeftoverSettings(action="end", grace=60)
    monkeypatch.setattr(type(desk.broker.core.leftovers), "settings", settings)
    desk.tick(1)
    (notice,) = (it for it in desk.broker.notices(desk.me) if it.kind == "leftover")
    assert notice.message.endswith("1 of them will be ended.")
    act(desk, 60)
    assert ended(desk, pid) == signal.SIGTERM
    assert processes.alive(server, None), "other programs may be at work under it"
    left = next(it for it in desk.broker.leftovers(desk.me) if it.pid == server)
    assert left.until is None
    desk.broker.end_process(desk.me, server, left.start)
    assert ended(desk, server) == signal.SIGTERM, "but by hand it is"


def test_window_that_somebody_looks_at_is_no_leftover(desk: Bench) -> None:
    _, pid = left_by(desk)
    desk.source.devices[0].processes = [ProcessReading(pid, GIB, "graphics")]
    desk.tick(1)
    assert desk.broker.leftovers(desk.me) == []


@pytest.mark.parametrize("change", ["start", "owner", "kernel", "outsider"])
def test_nothing_but_an_own_leftover_is_ended(desk: Bench, change: str) -> None:
    _, pid = left_by(desk)
    left, who, start = only(desk), desk.me, only(desk).start
    if change == "start":
        start += 1
    elif change == "owner":
        who = OTHER
        assert desk.broker.leftovers(OTHER) == []
    else:
        kernel = desk.kernel()
        pid = kernel.process.pid if change == "kernel" else desk.process().pid
        uses(desk, pid)
        desk.tick(1)
        found = processes.start_of(pid)
        assert found is not None
        start = found
    with pytest.raises(UnknownProcess):
        desk.broker.end_process(who, pid, start)
    assert processes.alive(pid, None)
    assert only(desk) == left


def test_marker_of_an_environment_that_nobody_knew_makes_no_leftover(desk: Bench) -> None:
    uses(desk, child(desk, str(uuid.uuid4())))
    desk.tick(1)
    assert desk.broker.leftovers(desk.me) == []
    assert [it.memory for it in desk.broker.core.usage[desk.device(0)].outside] == [GIB]


def test_grandchild_whose_parents_are_gone_stays_its_kernels(desk: Bench) -> None:
    """Proved once while the family was whole, it stays proved when init is its parent."""
    code = (
        "import os, subprocess, sys; os.environ.pop('GENV_JUPYTER_ENVIRONMENT', None);"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True);"
        "os.close(1); __import__('time').sleep(600)"
    )
    environment = {key: value for key, value in os.environ.items() if key != MARKER}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    desk.children.append(parent)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.stdout.close()
    try:
        kernel = desk.kernel(process=parent)
        kernel.attach(HALF)
        uses(desk, pid)
        desk.tick(1)
        assert [it.pid for it in kernel.now.processes or ()] == [pid]
        desk.end(parent)
        desk.broker.end_kernel(desk.me, desk.server, kernel.id)
        desk.tick(1)
        assert only(desk).pid == pid
    finally:
        os.kill(pid, signal.SIGKILL)


class Remembering(Bench):
    """A bench whose broker keeps records, as those of users do."""

    def open(self) -> Broker:
        records = RecordsLedger(self.path.with_name("records.sqlite"))
        records.open()
        return Broker(
            LiveLedger(self.path),
            self.source,
            records=records,
            clock=self.clock,
            steady=self.steady,
        )

    def reopen(self) -> None:
        """Leave, as a broker does that nobody needs, and start another."""
        self.broker.close()
        self.source = SimulatedSource(self.source.devices)
        self.broker = self.open()


def test_next_broker_knows_from_the_records_whose_a_leftover_was(tmp_path: Path) -> None:
    desk = Remembering(tmp_path / "ledger.sqlite")
    try:
        kernel, pid = left_by(desk)
        strange = child(desk, str(uuid.uuid4()))
        uses(desk, strange)
        desk.reopen()
        for _ in range(3):  # seen, looked up, known
            desk.tick(1)
        left = only(desk)
        assert (left.pid, left.environment, left.after) == (pid, kernel.id, "ended")
        assert desk.broker.end_process(desk.me, pid, left.start).state == "ending"
        assert ended(desk, pid) == signal.SIGTERM
        assert processes.alive(strange, None), "of another broker, perhaps"
    finally:
        desk.close()
