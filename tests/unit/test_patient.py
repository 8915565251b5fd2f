"""A process whose files in /proc do not answer: nothing is known of it, and nobody waits for it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.devices.source import ProcessReading
from genv_jupyter.isolation import evidence, patient, processes
from tests.unit.brokers import GIB, HALF, Bench, bench


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Path]:
    """A file that says nothing until it is let go: who opens a pipe waits for the other end."""
    path = tmp_path / "stuck"
    os.mkfifo(path)
    yield path
    let_go(path)


def let_go(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(descriptor, b"found")
    patient.read("/proc/self/comm", 1)  # another thread's: that one is still caught
    os.close(descriptor)


def test_a_file_is_read_up_to_a_length_and_one_that_is_not_there_is_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    assert patient.read(str(file), 4) == b"0123"
    assert patient.read(str(tmp_path / "none"), 4) is None
    assert not patient.waits_for(str(file)) and not patient.waits_for(str(tmp_path / "none"))


def test_one_that_does_not_answer_keeps_no_other_waiting_and_is_asked_once(
    stuck: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = patient.Reader()
    assert reader.read(str(stuck), 9) is None and reader.waits_for(str(stuck))
    threads = threading.active_count()
    for _ in range(5):
        assert reader.read(str(stuck), 9) is None
        assert reader.read("/proc/self/comm", 99)
    assert threading.active_count() == threads + 1, "the one that reads on"
    monkeypatch.setattr(patient, "MOST_CAUGHT", 1)
    assert reader.read("/proc/self/comm", 99) is None, "not another one, for ever"
    let_go(stuck)
    while reader.waits_for(str(stuck)):
        pass
    assert reader.read("/proc/self/comm", 99) and not reader.waits_for(str(stuck))


def test_a_forked_child_reads_by_a_thread_of_its_own() -> None:
    assert patient.read("/proc/self/comm", 99)
    child = os.fork()
    if child == 0:
        os._exit(0 if patient.read("/proc/self/comm", 99) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_that_hangs_is_known_again_when_it_does_not(
    tmp_path: Path, stuck: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker reads on meanwhile; the process is neither blamed nor refuted for good."""
    with bench(tmp_path) as desk:
        kernel = desk.kernel()
        kernel.attach(HALF)
        hung = marked(desk, kernel.id)
        monkeypatch.setattr(processes, "age", lambda start: 3600.0)
        with monkeypatch.context() as patched:
            patched.setattr(processes, "_environ", lambda pid: str(stuck))
            desk.source.devices[0].processes = [ProcessReading(hung, GIB, "compute")]
            desk.tick(1)
            usage = desk.broker.core.usage[desk.device(0)]
            assert [it.pid for it in usage.outside] == [hung]
            assert evidence.claims(hung), "it may be somebody's: it is not ended"
        let_go(stuck)
        desk.source.devices[0].processes = [ProcessReading(hung, GIB + 1, "compute")]
        desk.tick(1)
        assert list(desk.broker.core.usage[desk.device(0)].own) == [kernel.id]


def marked(desk: Bench, environment: str) -> int:
    child = subprocess.Popen(
        ["sleep", "600"],
        env={**os.environ, processes.MARKER: environment},
        start_new_session=True,
    )
    desk.children.append(child)
    while processes.marker(child.pid) is None:  # on its way into the program
        pass
    return child.pid
