"""The environment's own nvidia-smi, answered here: where its grants and its processes are known."""

from __future__ import annotations

import threading
import time
from datetime import datetime

import msgspec

from genv_jupyter.broker.core import Core
from genv_jupyter.devices.source import DeviceReading, Inventory
from genv_jupyter.isolation import patient
from genv_jupyter.isolation.smi.report import App, Card, Report, SmiAnswer, SmiCall
from genv_jupyter.isolation.smi.view import render
from genv_jupyter.ledger.rows import EnvironmentRow, GrantRow
from genv_jupyter.model import Process

FRESH = 0.2
"""Seconds for which one reading serves all who ask: any number of them costs no more than that."""


class Particulars:
    """The last reading with particulars, and when it was made."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.at = float("-inf")

    def due(self, core: Core) -> bool:
        """Say whether a call should read again; while the driver hangs, nobody waits for it."""
        return not core.hanging and time.monotonic() - self.at > FRESH

    def take_in(self, core: Core, inventory: Inventory, began: float, ended: float) -> None:
        """Keep a reading, and give the rest of it to the books as an ordinary one."""
        self.inventory, self.at = inventory, ended
        core.absorb(_plain(inventory), began, ended)

    def of(self, uuid: str) -> DeviceReading | None:
        """Return what was read of a device."""
        return next((one for one in self.inventory.devices if one.uuid == uuid), None)


def _plain(inventory: Inventory) -> Inventory:
    """Return a reading without its particulars: they change all the time, and nobody watches."""
    devices = tuple(msgspec.structs.replace(device, details=None) for device in inventory.devices)
    return msgspec.structs.replace(inventory, devices=devices)


def answer(
    core: Core, lock: threading.RLock, row: EnvironmentRow, particulars: Particulars, call: SmiCall
) -> SmiAnswer:
    """Answer a call of nvidia-smi; the driver is read outside the lock, as in a round."""

    def seen() -> Report:
        if particulars.due(core):
            reading = core.read(details=True)
            with lock:
                particulars.take_in(core, *reading)
        with lock:
            return report(core, row, particulars)

    return render(call.args, seen, call.rounds)


def report(core: Core, row: EnvironmentRow, particulars: Particulars) -> Report:
    """Describe the devices of an environment in the order in which its processes see them."""
    grants = [grant for grant in core.books.grants_of(row.id) if grant.state != "reserved"]
    cards = (_card(core, number, grant, particulars) for number, grant in enumerate(grants))
    return Report(
        cards=tuple(cards),
        driver=core.inventory.driver_version,
        cuda=core.inventory.cuda_version,
        now=datetime.now(),
    )


def _card(core: Core, number: int, grant: GrantRow, particulars: Particulars) -> Card:
    usage = core.usage.get(grant.device)
    slot = core.books.slots[grant.device]
    card = Card(index=number, uuid=grant.device, name=slot.name, total=grant.memory)
    if usage is None or slot.health == "lost":
        return card
    reading, own = usage.reading, usage.own.get(grant.environment, [])
    told = particulars.of(grant.device)
    details = None if told is None else told.details
    return msgspec.structs.replace(
        card,
        parent=reading.parent,
        instance=reading.instance,
        used=_used(own) if usage.known else None,
        utilization=reading.utilization,
        compute_mode=reading.compute_mode,
        capability=reading.capability,
        details=card.details if details is None else details,
        apps=_apps(reading, own),
    )


def _used(own: list[Process]) -> int | None:
    """Add up what processes hold; one of whom it is not known makes the sum unknown."""
    amounts = [process.memory for process in own]
    return None if None in amounts else sum(amount or 0 for amount in amounts)


def _apps(reading: DeviceReading, own: list[Process]) -> tuple[App, ...]:
    kinds = {process.pid: process.kind for process in reading.processes or ()}
    return tuple(
        App(
            pid=process.pid,
            name=_program(process.pid) or process.name or "-",
            memory=process.memory,
            kind=kinds.get(process.pid, "compute"),
        )
        for process in sorted(own, key=lambda process: process.pid)
    )


def _program(pid: int) -> str | None:
    """Return a process's program as it was called, which is what nvidia-smi shows."""
    line = patient.read(f"/proc/{pid}/cmdline", 4096)
    if line is None:  # it has just ended, is another user's, or hangs
        return None
    text = line.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text) or None
