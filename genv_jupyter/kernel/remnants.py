"""What kernels have left behind, as a page; and what owners are told, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from genv_jupyter.api.client import Client
from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import Block, Table, Text, Title
from genv_jupyter.kernel.views import View
from genv_jupyter.leftovers import Leftover
from genv_jupyter.model import Device, Environment
from genv_jupyter.units import format_memory

NOTHING = "No process of a kernel that is gone holds a GPU."
HOW = "End one with `jupyter gpu leftovers --end PID`, all with `--end all`, or in the sidebar."


def told(client: Client, environment: Environment | None) -> list[str]:
    """Return what the owner of this process is told: of its environment, and of leftovers."""
    here = None if environment is None else environment.id
    return [
        f"{notice.message} {notice.hint}".rstrip()
        for notice in client.notices()
        if notice.kind == "leftover" or (here is not None and notice.environment == here)
    ]


class LeftoversView(View):
    """Every leftover process: what it holds where, and whose it was."""

    def __init__(
        self, leftovers: Sequence[Leftover], devices: Sequence[Device], said: str = ""
    ) -> None:
        self.leftovers = tuple(leftovers)
        self.devices = {device.uuid: device for device in devices}
        self.said = said

    def blocks(self) -> list[Block]:
        """Return the page."""
        head: list[Block] = [Text(self.said)] if self.said else []
        if not self.leftovers:
            return [*head, Text(NOTHING)]
        count = len(self.leftovers)
        title = "1 leftover process" if count == 1 else f"{count} leftover processes"
        rows = [self._row(left) for left in self.leftovers]
        names = ("pid", "command", "holds", "of", "left", "")
        return [*head, Title(title), Table(names, tuple(rows)), Text(HOW, "dim")]

    def _row(self, left: Leftover) -> tuple[str, ...]:
        holds = ", ".join(
            f"{'?' if use.memory is None else format_memory(use.memory)} of "
            f"{words.device_label(self.devices.get(use.device), use.device)}"
            for use in left.uses
        )
        former = left.name or left.environment[:8]
        of = former if left.after == "ended" else f"{former} (restarted)"
        ending = "ending" if left.state == "ending" else ""
        return (str(left.pid), left.command or "", holds, of, words.since(left.left), ending)
