"""Who may tell what a kernel sees: the process itself, its children, and its Jupyter server."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from genv_jupyter.broker import claims
from genv_jupyter.errors import Conflict, NotYours
from genv_jupyter.model import EnvironmentPatch, KernelReport, NewEnvironment, ServerReport
from tests.unit.brokers import WHOLE, Bench, Kernel, bench

T = TypeVar("T")
UNSEEN = 0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, "1x24GiB") as made:
        yield made


def leaving(desk: Bench) -> Kernel:
    """A kernel whose device was taken back, and which has not been seen without it yet."""
    kernel = desk.kernel()
    kernel.attach(WHOLE)
    desk.broker.detach(desk.me, kernel.id)
    assert [grant.state for grant in kernel.now.grants] == ["draining"]
    return kernel


def forged(desk: Bench, kernel: Kernel, kind: type[T]) -> T:
    """What the process would say once it has hidden everything."""
    told = {"applied": "live", "cuda": "not_initialized", **desk.seen(kernel.id)}
    return msgspec.convert(told, kind)


STRANGERS: dict[str, Callable[[Bench], int]] = {
    "another process of the user": lambda desk: desk.process().pid,
    "one that is not seen": lambda desk: UNSEEN,
    "the parent of all": lambda desk: os.getpid(),
    "another kernel of the same server": lambda desk: desk.kernel("b.ipynb").process.pid,
}


@pytest.mark.parametrize("who", STRANGERS)
def test_a_device_in_use_is_not_freed_by_somebody_s_word(desk: Bench, who: str) -> None:
    kernel = leaving(desk)
    speaker = STRANGERS[who](desk)
    after = desk.broker.patch(
        desk.me, kernel.id, forged(desk, kernel, EnvironmentPatch), peer_pid=speaker
    )
    assert [grant.state for grant in after.grants] == ["draining"]
    row = desk.broker.books.environments[kernel.id]
    assert row.confirmed != row.revision


def test_the_process_and_its_server_are_believed(desk: Bench) -> None:
    for speaker in (lambda it: it.process.pid, lambda it: desk.server_process.pid, lambda it: None):
        kernel = leaving(desk)
        pid = speaker(kernel)
        after = desk.broker.patch(
            desk.me, kernel.id, forged(desk, kernel, EnvironmentPatch), peer_pid=pid
        )
        assert after.grants == ()


def test_a_kernel_inside_a_wrapper_is_believed(desk: Bench) -> None:
    """The pid that the server knows is that of the wrapper."""
    wrapper = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    assert wrapper.stdout is not None
    inner = int(wrapper.stdout.readline())
    try:
        kernel = desk.kernel(process=wrapper)  # type: ignore[arg-type]
        kernel.attach(WHOLE)
        desk.broker.detach(desk.me, kernel.id)
        after = desk.broker.patch(
            desk.me, kernel.id, forged(desk, kernel, EnvironmentPatch), peer_pid=inner
        )
        assert after.grants == ()
    finally:
        os.kill(inner, 9)
        wrapper.wait()
        wrapper.stdout.close()


def test_that_cuda_is_not_there_is_believed_of_those_who_know(desk: Bench) -> None:
    held = desk.broker.create(desk.me, NewEnvironment(kind="command", pid=desk.process().pid))
    stranger = desk.process().pid
    none = EnvironmentPatch(cuda="not_initialized")
    asks: tuple[Callable[[], object], ...] = (
        lambda: desk.broker.attach(
            desk.me, held.id, WHOLE, cuda="not_initialized", peer_pid=stranger
        ),
        lambda: desk.broker.patch(desk.me, held.id, none, peer_pid=stranger),
        lambda: desk.broker.detach(desk.me, held.id, cuda="not_initialized", peer_pid=stranger),
    )
    for ask in asks:
        ask()
        assert desk.broker.environment(desk.me, held.id).cuda == "unknown"
    desk.broker.patch(desk.me, held.id, EnvironmentPatch(cuda="initialized"), peer_pid=stranger)
    assert desk.broker.environment(desk.me, held.id).cuda == "initialized"


def test_name_and_lease_are_everybody_s_of_the_user(desk: Bench) -> None:
    kernel = desk.kernel()
    body = EnvironmentPatch(name="renamed", keep=True)
    after = desk.broker.patch(desk.me, kernel.id, body, peer_pid=desk.process().pid)
    assert after.name == "renamed"


@pytest.mark.parametrize("speaker", ["stranger", "kernel", "unseen"])
def test_only_the_server_itself_tells_of_its_kernels(desk: Bench, speaker: str) -> None:
    kernel = leaving(desk)
    pid = {
        "stranger": desk.process().pid,
        "kernel": kernel.process.pid,
        "unseen": UNSEEN,
    }[speaker]
    report = forged(desk, kernel, KernelReport)
    broker = desk.broker
    for verb in (
        lambda: broker.put_kernel(desk.me, desk.server, kernel.id, report, peer_pid=pid),
        lambda: broker.end_kernel(desk.me, desk.server, kernel.id, peer_pid=pid),
        lambda: broker.end_server(desk.me, desk.server, peer_pid=pid),
    ):
        with pytest.raises(NotYours, match="Only the Jupyter server itself"):
            verb()
    assert [grant.state for grant in kernel.now.grants] == ["draining"]
    after = broker.put_kernel(
        desk.me, desk.server, kernel.id, report, peer_pid=desk.server_process.pid
    )
    assert after.grants == ()


def test_a_server_registers_itself_and_in_nobody_s_place(desk: Bench) -> None:
    other = desk.process().pid
    put = desk.broker.put_server
    with pytest.raises(NotYours, match="is not the one that says so"):
        put(desk.me, str(uuid.uuid4()), ServerReport(pid=other, version="1"), peer_pid=os.getpid())
    with pytest.raises(NotYours, match="Another living server"):
        put(desk.me, desk.server, ServerReport(pid=other, version="1"), peer_pid=other)
    desk.end(desk.server_process)
    put(desk.me, desk.server, ServerReport(pid=other, version="1"), peer_pid=other)


def test_a_process_is_that_of_one_kernel(desk: Bench) -> None:
    """Else what it uses would be taken for that of another one, and its device for free."""
    kernel = desk.kernel()
    second, other = desk.process().pid, str(uuid.uuid4())
    desk.broker.put_server(desk.me, other, ServerReport(pid=second, version="1"), peer_pid=second)
    report = KernelReport(phase="running", pid=kernel.process.pid)
    with pytest.raises(Conflict, match="is that of another kernel"):
        desk.broker.put_kernel(desk.me, other, str(uuid.uuid4()), report, peer_pid=second)
    assert desk.broker.books.by_pid[kernel.process.pid] == kernel.id


def test_a_pid_that_is_another_s_by_now_is_not_believed(desk: Bench) -> None:
    kernel = leaving(desk)
    row = desk.broker.books.environments[kernel.id]
    assert row.start is not None
    for start, believed in ((row.start, True), (row.start - 1, False)):
        seen = msgspec.structs.replace(row, start=start)
        assert claims.speaks_for(desk.broker.books, seen, kernel.process.pid) is believed
