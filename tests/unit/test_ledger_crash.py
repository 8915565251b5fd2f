"""SIGKILL at any moment: what was answered is there, what was not is whole or absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.ledgers import BACKENDS, SqliteBackend, counters, sums


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteBackend:
    return BACKENDS[request.param](tmp_path / "gpu")


_CHILD = """
import os, signal, sys
from pathlib import Path
import msgspec
from genv_jupyter.ledger import LiveLedger
from genv_jupyter.ledger.rows import DeviceRow, EnvironmentRow, GrantRow

nobody = EnvironmentRow.nobody("local:1000")
DEVICE = DeviceRow(uuid="GPU-a", memory_capacity=10**9, compute_capacity=10**9)

def row(number):
    return GrantRow(
        id=number, environment=str(number), device="GPU-a", owner="local:1000", memory=7,
        compute=3, exclusive=False, counted_memory=7, counted_compute=3, counted_exclusive=False,
        state="granted", applied=None, since=0.0,
    )

def attach(ledger, number):
    with ledger.transaction() as t:
        t.put_environment(msgspec.structs.replace(nobody, id=str(number)))
        t.add_grant(row(number))
"""


def _python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_CHILD) + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_what_was_committed_survives_sigkill_in_the_middle_of_commits(
    backend: SqliteBackend,
) -> None:
    script = f"""
    ledger = {backend.expression()}
    assert ledger.open() == []
    with ledger.transaction() as t:
        t.put_device(DEVICE)
    known = {{grant.id for grant in ledger.load().grants}}
    number = max(known, default=0)
    while True:
        number += 1
        attach(ledger, number)
        os.write(1, b"%d\\n" % number)
    """
    answered = 0
    for _ in range(2):
        with _python(script) as child:
            assert child.stdout is not None
            for _ in range(150):
                answered = int(child.stdout.readline())
            child.kill()
            for line in child.stdout:
                if line.endswith("\n"):
                    answered = int(line)
        assert child.returncode == -signal.SIGKILL
        ledger = backend.ledger()
        assert ledger.open() == []
        state = ledger.load()
        found = counters(ledger)
        ledger.close()
        ids = sorted(row.id for row in state.grants)
        assert ids in (list(range(1, answered + 1)), list(range(1, answered + 2)))
        assert {row.id for row in state.environments} == {str(number) for number in ids}
        assert found == sums(state)


def test_sigkill_between_any_two_statements_leaves_all_or_nothing(backend: SqliteBackend) -> None:
    script = f"""
    def doomed(step):
        def trace(text, parameters):
            nonlocal step
            step -= 1
            if step < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        ledger = {backend.expression()}
        ledger.open()
        ledger.trace = trace
        attach(ledger, 1)
        os._exit(0)

    ledger = {backend.expression()}
    ledger.open()
    with ledger.transaction() as t:
        t.put_device(DEVICE)
    ledger.close()
    for step in range(20):
        child = os.fork()
        if not child:
            doomed(step)
        _, status = os.waitpid(child, 0)
        ledger = {backend.expression()}
        assert ledger.open() == []
        state = ledger.load()
        ledger.close()
        print(os.waitstatus_to_exitcode(status), len(state.environments), len(state.grants))
        if not status:
            break
    """
    with _python(script) as child:
        assert child.stdout is not None
        lines = [tuple(map(int, line.split())) for line in child.stdout]
    assert child.returncode == 0
    # BEGIN, the environment, the grant, the device, the share, COMMIT: then it was answered.
    assert lines == [(-signal.SIGKILL, 0, 0)] * 6 + [(0, 1, 1)]
