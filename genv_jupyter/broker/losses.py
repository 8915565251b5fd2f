"""Holders of devices that are gone are told so, and that they are back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from genv_jupyter.broker.sensors import trouble_of

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core

HINT = (
    "What ran there has failed or will. Your grant is kept, and is good again when the device is "
    "back; or release it and attach another one (`%gpu attach …`)."
)


class Losses:
    """Knows who was told of a lost device. Used with the broker's lock held."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._told: set[str] = set()

    def round(self) -> None:
        """Tell every holder of a lost device, and take it back where it is there again."""
        core, books = self.core, self.core.books
        holders: dict[str, list[str]] = {}
        for uuid, slot in books.slots.items():
            if slot.health == "lost":
                for grant in books.on_device[uuid].values():
                    holders.setdefault(grant.environment, []).append(uuid)
        for environment in self._told - holders.keys():
            row = books.environments.get(environment)
            if row is not None:
                core.board.withdraw(row, "lost")
        for environment, uuids in holders.items():
            row = books.environments[environment]
            said = " ".join(trouble_of(books.slots[uuid], None) or "" for uuid in uuids)
            core.board.tell(row, "lost", said, level="error", hint=HINT, actions=("release",))
            if environment not in self._told:
                for uuid in uuids:
                    core.record("DeviceLost", row, device=uuid, reason=said)
        self._told = set(holders)
