"""A past for a broker to tell of, written as brokers write it, before one is started."""

from __future__ import annotations

import math
import os
import time
import uuid
from pathlib import Path

from genv_jupyter.devices.simulated import simulated_uuid
from genv_jupyter.ledger.records import Record, RecordsLedger
from genv_jupyter.ledger.samples import DeviceSample, GrantSample, Holder, Samples
from genv_jupyter.rollup import LEVELS, DeviceSums, GrantSums, coarser

GIB = 2**30
MIB = 2**20
OWNER = f"local:{os.getuid()}"
FINEST = 10


def write_past(records: Path, *, seconds: int = 3000, names: tuple[str, str]) -> tuple[str, str]:
    """Write what two notebooks did on the first simulated device; return their environments.

    The first had half of it all the time; the second came later and has ended.
    """
    device = simulated_uuid(0)
    now = int(time.time()) // FINEST * FINEST
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    devices: dict[tuple[str, int], DeviceSums] = {}
    grants: dict[tuple[tuple[str, str], int], GrantSums] = {}
    begin, later, over = now - seconds, now - seconds // 2, now - seconds // 6
    ms = 1000 * FINEST
    for at in range(begin, now, FINEST):
        wave = math.sin((at - begin) / 180)
        parts = [(first, int((7 + 3 * wave) * 1024))]
        if later <= at < over:
            parts.append((second, 5 * 1024))
        used, busy = sum(mib for _, mib in parts), int(55 + 35 * wave)
        devices[device, at] = DeviceSums(
            seen=ms,
            memory_known=ms,
            memory=ms * used,
            memory_peak=used * MIB,
            utilization_known=ms,
            utilization=ms * busy,
            utilization_peak=min(100, busy + 8),
            temperature_known=ms,
            temperature=ms * (50 + busy // 4),
            temperature_peak=52 + busy // 4,
            power_known=ms,
            power=ms * (120_000 + 2000 * busy),
            granted=ms * (12 * 1024 + (6 * 1024 if len(parts) > 1 else 0)),
            share=ms * (7500 if len(parts) > 1 else 5000),
        )
        for environment, mib in parts:
            half = environment == first
            grants[(environment, device), at] = GrantSums(
                held=ms,
                memory=ms * 1024 * (12 if half else 6),
                share=ms * (5000 if half else 2500),
                used_known=ms,
                used=ms * mib,
                used_peak=mib * MIB,
                idle_known=ms,
                idle=0 if busy > 40 else ms,
            )
    ledger = RecordsLedger(records)
    ledger.open()
    try:
        ledger.enqueue_samples(
            Samples(
                now=now,
                devices=tuple(
                    DeviceSample(step, at, gpu, sums)
                    for step in LEVELS
                    for (gpu, at), sums in coarser(devices, step).items()
                ),
                grants=tuple(
                    GrantSample(step, at, environment, gpu, sums)
                    for step in LEVELS
                    for ((environment, gpu), at), sums in coarser(grants, step).items()
                ),
                holders=tuple(
                    Holder(environment=it, owner=OWNER, user="user", name=name, seen=now)
                    for it, name in zip((first, second), names, strict=True)
                ),
            )
        )
        said = "Idle for 30 min; it is given back in 10 min."
        ledger.append(
            Record(at=at, event=event, owner=OWNER, environment=it, device=gpu, reason=reason)
            for at, event, it, gpu, reason in (
                (float(begin), "GrantAdded", first, device, None),
                (float(later), "GrantAdded", second, device, None),
                (over - 600.0, "notice", second, None, f"idle: {said}"),
                (float(over), "GrantReleased", second, device, "It was idle."),
                (over + 30.0, "EnvironmentEnded", second, None, "Its kernel was shut down."),
            )
        )
    finally:
        ledger.close()
    return first, second
