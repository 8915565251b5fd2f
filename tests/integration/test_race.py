"""Thirty-two processes fight for two devices; an offline checker looks for a moment too full."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from genv_jupyter import Client

CLIENTS = 32
SECONDS = 10.0
FIGHTER = """
import json, os, random, sys, time
from genv_jupyter import Client
from genv_jupyter.errors import NoCapacity
from genv_jupyter.model import NewEnvironment, Request

seed, seconds, path = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
choice = random.Random(seed)
client = Client(timeout=60)
me = client.create(NewEnvironment(kind="command", pid=os.getpid())).id
end = time.monotonic() + seconds
with open(path, "w") as journal:
    while time.monotonic() < end:
        request = choice.choice([
            Request(gpus=1), Request(gpus=2), Request(fraction=0.5), Request(fraction=0.25),
            Request(memory="9G"), Request(memory="2GiB"), Request(gpus=2, memory="6G"),
        ])
        try:
            got = client.attach(me, request, cuda="not_initialized")
        except NoCapacity:
            continue
        since = time.monotonic()
        time.sleep(choice.random() * 0.02)
        until = time.monotonic()
        client.detach(me, cuda="not_initialized")
        for grant in got.grants:
            entry = [grant.device, grant.memory, grant.exclusive, since, until]
            journal.write(json.dumps(entry) + "\\n")
"""

Interval = tuple[str, int, bool, float, float]


def sweep(intervals: list[Interval], capacity: dict[str, int]) -> list[str]:
    """Return every moment at which more was held than there is, device by device."""
    found = []
    moments: dict[str, list[tuple[float, int, int, bool]]] = defaultdict(list)
    for device, memory, exclusive, since, until in intervals:
        moments[device].append((since, 1, memory, exclusive))
        moments[device].append((until, -1, memory, exclusive))
    for device, events in moments.items():
        held = number = alone = 0
        for at, sign, memory, exclusive in sorted(events):
            held += sign * memory
            number += sign
            alone += sign * exclusive
            if held > capacity[device]:
                found.append(f"{device} at {at}: {held} bytes of {capacity[device]}")
            if alone and number > 1:
                found.append(f"{device} at {at}: {number} holders beside an exclusive one")
    return found


def test_the_checker_finds_what_is_wrong() -> None:
    assert sweep([("a", 5, False, 0, 2), ("a", 6, False, 1, 3)], {"a": 10})
    assert sweep([("a", 1, True, 0, 2), ("a", 1, False, 1, 3)], {"a": 10})
    assert not sweep([("a", 9, True, 0, 2), ("a", 9, True, 2, 3)], {"a": 10})


def test_no_moment_is_over_committed(broker_home: Path, tmp_path: Path) -> None:
    client = Client()
    capacity = {device.uuid: device.memory_usable or 0 for device in client.devices()}
    fighters = [
        subprocess.Popen(
            [sys.executable, "-c", FIGHTER, str(n), str(SECONDS), str(tmp_path / f"{n}.jsonl")]
        )
        for n in range(CLIENTS)
    ]
    try:
        assert [fighter.wait(timeout=SECONDS + 90) for fighter in fighters] == [0] * CLIENTS
    finally:
        for fighter in fighters:
            fighter.kill()
            fighter.wait()
    intervals: list[Interval] = []
    winners = 0
    for n in range(CLIENTS):
        lines = (tmp_path / f"{n}.jsonl").read_text().splitlines()
        intervals.extend(tuple(json.loads(line)) for line in lines)
        winners += bool(lines)
    assert not sweep(intervals, capacity)
    assert winners > CLIENTS // 2, "the fight was too uneven to show anything"
    assert len(intervals) > 200, f"only {len(intervals)} grants were made"
