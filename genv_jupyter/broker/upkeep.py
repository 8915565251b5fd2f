"""Devices under maintenance: nobody gets anything new there, and who is there is told.

What is granted stays, and may be changed on its device; the device is empty when its holders have
left, by themselves or because an administrator has released what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from genv_jupyter.broker.quota_rules import administers
from genv_jupyter.errors import BadRequest, Unavailable
from genv_jupyter.ledger import maintenance as table
from genv_jupyter.ledger.maintenance import MaintenanceRow
from genv_jupyter.maintenance import DevicePatch, Maintenance, words
from genv_jupyter.model import Principal
from genv_jupyter.slots import resolve

if TYPE_CHECKING:
    import threading

    from sqlalchemy import Connection

    from genv_jupyter.broker.core import Core
    from genv_jupyter.ledger.records import RecordsLedger

LONGEST = 200
HINT = "What you hold there stays yours. Finish when you can, and release it."


class Upkeep:
    """Knows every device under maintenance.

    Parameters
    ----------
    lock
        The broker's. ``patch`` takes it where it must; everything else is called under it.
    records
        Where it is kept.
    """

    def __init__(self, core: Core, lock: threading.RLock, records: RecordsLedger | None) -> None:
        self.core = core
        self.lock = lock
        self.records = records
        self._rows: dict[str, MaintenanceRow] = {}
        self._told: set[str] = set()
        if records is not None:
            try:
                self._rows = {row.device: row for row in records.run(table.every)}
            except Unavailable as error:
                core.notices.append(f"Which devices are under maintenance is not known: {error}")
        for slot in core.books.slots.values():
            slot.closed = self.words(slot.uuid)

    def of(self, device: str) -> Maintenance | None:
        """Return the maintenance of a device; ``None`` where there is none."""
        row = self._rows.get(device)
        if row is None:
            return None
        return Maintenance(since=self.core.stamp(row.at), by=row.by, reason=row.reason)

    def words(self, device: str) -> str | None:
        """Return the same as a part of sentences."""
        found = self.of(device)
        return None if found is None else words(found)

    def patch(self, principal: Principal, name: str, body: DevicePatch) -> str:
        """Drain a device, or put it back; return its UUID. Waits for a disk, without the lock.

        Raises
        ------
        GpuError
            The caller is no administrator, there is no such device, the reason is too long, or it
            cannot be kept.
        """
        administers(self.core, principal)
        reason = " ".join(body.reason.split())
        if len(reason) > LONGEST:
            raise BadRequest(
                f"The reason has {len(reason)} characters.", hint=f"{LONGEST} are the most."
            )
        with self.lock:
            (slot,) = resolve([name], list(self.core.books.slots.values()))
            device, known = slot.uuid, self._rows.get(slot.uuid)
        at = self.core.clock() if known is None else known.at
        row = MaintenanceRow(device=device, by=principal.name, reason=reason, at=at)
        if body.maintenance:
            self._keep(lambda it: table.put(it, row))
        else:
            self._keep(lambda it: table.drop(it, device))
        with self.lock:
            rows = {name: it for name, it in self._rows.items() if name != device}
            self._rows = rows | ({device: row} if body.maintenance else {})
            found = self.core.books.slots.get(device)
            if found is not None:
                found.closed = self.words(device)
                self.core.books.touch_device(device)
            self.round()
        return device

    def round(self) -> None:
        """Tell every holder of a device under maintenance, and take it back when that is over."""
        core, books = self.core, self.core.books
        holders: dict[str, list[str]] = {}
        for device in self._rows:
            for grant in books.on_device.get(device, {}).values():
                holders.setdefault(grant.environment, []).append(device)
        for environment in self._told - holders.keys():
            row = books.environments.get(environment)
            if row is not None:
                core.board.withdraw(row, "maintenance")
        for environment, devices in holders.items():
            said = " ".join(f"{books.slots[it].label} is {self.words(it)}." for it in devices)
            row = books.environments[environment]
            core.board.tell(row, "maintenance", said, hint=HINT, actions=("release",))
        self._told = set(holders)

    def _keep(self, write: Callable[[Connection], None]) -> None:
        if self.records is None:
            raise Unavailable(
                "No device can be drained: this broker has no records to keep it in.",
                hint="`jupyter gpu doctor` says what is wrong.",
            )
        self.records.run(write)
