"""Databases under test, rows to write, and what the counters must be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
from sqlalchemy import select

from genv_jupyter.ledger import LiveLedger, schema
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow, LiveState

A, B = "GPU-a", "GPU-b"
MEMORY, COMPUTE = 1000, 10_000
OWNERS = ("local:1000", "local:1001")


class SqliteBackend:
    """Makes ledgers in files of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def ledger(self) -> LiveLedger:
        """Return a ledger on the one database of this backend, not yet open."""
        return LiveLedger(self.directory / "ledger.sqlite")

    def expression(self) -> str:
        """Return Python source that makes the same ledger in another process."""
        return f"LiveLedger(Path({str(self.directory / 'ledger.sqlite')!r}))"


BACKENDS = {"sqlite": SqliteBackend}


def environment(id_: str, **changes: object) -> EnvironmentRow:
    return msgspec.structs.replace(
        EnvironmentRow.nobody(OWNERS[0]), **{"id": id_, "created": 1.5, **changes}
    )


def grant(id_: int = 1, environment: str = "e1", device: str = A, **changes: object) -> GrantRow:
    plain = GrantRow(
        id=id_,
        environment=environment,
        device=device,
        owner=OWNERS[0],
        memory=100,
        compute=None,
        exclusive=False,
        counted_memory=100,
        counted_compute=0,
        counted_exclusive=False,
        state="granted",
        applied=None,
        since=2.25,
    )
    return msgspec.structs.replace(plain, **changes)


def counters(ledger: LiveLedger) -> tuple[dict[str, tuple[int, ...]], dict[tuple[str, str], int]]:
    """Return (memory, exclusive, shared) of each device, and compute of each (device, owner)."""
    assert ledger._engine is not None
    d, s = schema.devices.c, schema.shares.c
    with ledger._engine.begin() as connection:
        devices = connection.execute(
            select(d.uuid, d.memory_granted, d.exclusive_grants, d.shared_grants)
        ).all()
        shares = connection.execute(select(s.device, s.owner, s.compute_granted)).all()
    return {row[0]: tuple(row[1:]) for row in devices}, {
        (row[0], row[1]): row[2] for row in shares if row[2]
    }


def sums(
    state: LiveState,
) -> tuple[dict[str, tuple[int, ...]], dict[tuple[str, str], int]]:
    """Return what the counters must be."""
    devices = {}
    shares: Counter[tuple[str, str]] = Counter()
    for device in state.devices:
        here = [row for row in state.grants if row.device == device.uuid]
        exclusive = sum(row.counted_exclusive for row in here)
        memory = sum(row.counted_memory for row in here)
        devices[device.uuid] = (memory, exclusive, len(here) - exclusive)
    for row in state.grants:
        if row.counted_compute:
            shares[row.device, row.owner] += row.counted_compute
    return devices, dict(shares)
