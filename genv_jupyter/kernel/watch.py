"""``%gpu watch``: a live line under each cell that runs for long, from a thread of its own.

The main thread is the user's: all that happens there is that a cell's beginning and end are noted.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError
from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import Block, Meter, Text, to_html, to_text
from genv_jupyter.kernel.session import Session
from genv_jupyter.kernel.usage import meter
from genv_jupyter.kernel.views import PageView
from genv_jupyter.model import EnvironmentUsage
from genv_jupyter.units import format_duration, format_memory

CALL_SECONDS = 2.0
THREAD = "genv-jupyter-watch"

ON = (
    "Watching: a cell that runs for more than {0:g} s shows what it uses. `%gpu watch off` ends it."
)
OFF = "No longer watching."


class Display:
    """One updating output under the cell that was running when it was made.

    Messages go out through IPykernel's own thread for output, under the header of that cell:
    whatever the main thread is doing, and whoever else asks the kernel something meanwhile.
    """

    after = every = 1.0

    def __init__(self, publisher: Any) -> None:
        self.parent = dict(publisher.parent_header)
        self.cell = self.parent.get("msg_id")
        self._publisher = publisher
        self._id = uuid.uuid4().hex
        self._shown = False

    def show(self, blocks: Sequence[Block], line: str) -> None:
        """Put this in the place of what was shown before."""
        if not self._shown:
            sys.stdout.flush()  # what was printed before stands above
        content = {
            "data": {"text/plain": line, "text/html": to_html(blocks)},
            "metadata": {},
            "transient": {"display_id": self._id},
        }
        self._publisher.session.send(
            self._publisher.pub_socket,
            "update_display_data" if self._shown else "display_data",
            content,
            parent=self.parent,
            ident=self._publisher.topic,
        )
        self._shown = True


class Lines:
    """Where nothing can be updated: now and then a whole line on stderr, over nobody else's."""

    after = every = 10.0
    cell = None

    def show(self, blocks: Sequence[Block], line: str) -> None:
        """Write one more line."""
        print(line, file=sys.stderr, flush=True)


class Cell:
    """A cell that is running."""

    def __init__(self, outlet: Display | Lines) -> None:
        self.outlet = outlet
        self.began = time.monotonic()
        self.over = threading.Event()
        self.peaks: dict[str, int] = {}


class Watcher:
    """Notes which cell runs; a thread says what it uses, and sleeps while none runs."""

    def __init__(self, session: Session) -> None:
        self.shell = session.shell
        self._session = session
        self._client = Client(start=False, timeout=CALL_SECONDS)  # starts no broker
        self._labels: dict[str, str] = {}
        self._changed = threading.Condition()
        self._cell: Cell | None = None
        self._nested = 0
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def start(self) -> None:
        """Begin with the next cell."""
        self.shell.events.register("pre_run_cell", self._before)
        self.shell.events.register("post_run_cell", self._after)
        atexit.register(self.stop)
        self._thread.start()

    def stop(self) -> None:
        """End, with the thread."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            if self._cell is not None:
                self._cell.over.set()
            self._changed.notify()
        self.shell.events.unregister("pre_run_cell", self._before)
        self.shell.events.unregister("post_run_cell", self._after)
        atexit.unregister(self.stop)
        self._thread.join(CALL_SECONDS)

    def outlet(self) -> Display | Lines:
        """Return where the line of a cell that begins now is shown."""
        publisher = self.shell.display_pub
        if getattr(publisher, "pub_socket", None) is None:
            return Lines()
        return Display(publisher)

    # -- in the main thread -----------------------------------------------------------------------

    def _before(self, info: Any = None) -> None:
        outlet = self.outlet()
        with self._changed:
            if self._cell is not None and self._cell.outlet.cell == outlet.cell:
                self._nested += 1  # a cell that runs another one
                return
            if self._cell is not None:
                self._cell.over.set()  # its end was not told
            self._nested = 0
            self._cell = Cell(outlet)
            self._changed.notify()

    def _after(self, result: Any = None) -> None:
        with self._changed:
            if self._nested:
                self._nested -= 1
            elif self._cell is not None:  # not so for the cell that has begun the watch
                self._cell.over.set()
                self._cell = None

    # -- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._cell is None or self._cell.over.is_set():
                    if self._ended:
                        self._client.close()
                        return
                    self._changed.wait()
                cell = self._cell
            if not cell.over.wait(cell.outlet.after):
                self._watch(cell)

    def _watch(self, cell: Cell) -> None:
        said = ""
        while True:
            over = cell.over.is_set()
            blocks = self._blocks(cell, over)
            line = to_text(blocks) if isinstance(cell.outlet, Display) else _one_line(blocks)
            if line != said and not (self._ended and not over):
                try:
                    cell.outlet.show(blocks, line)
                except (OSError, ValueError, RuntimeError):  # the kernel is closing its sockets
                    return
            said = line
            if over:
                return
            cell.over.wait(cell.outlet.every)

    def _blocks(self, cell: Cell, over: bool) -> list[Block]:
        """Return what is used now, and at the end what was used most while the cell ran."""
        try:
            session = self._session.beside(self._client)
            environment = session.environment()
            if environment is None or not environment.grants:
                return [Text("GPU: nothing is attached here.", "dim")]
            usage = session.client.usage(environment.id)
            if usage.grants and not {it.device for it in usage.grants} <= self._labels.keys():
                devices = session.devices(environment)
                self._labels = {it.uuid: words.device_label(it) for it in devices}
        except (GpuError, msgspec.MsgspecError) as error:  # also an answer of another version
            return [Text(f"GPU: {getattr(error, 'message', error)}", "dim")]
        return self._said(cell, usage, over)

    def _said(self, cell: Cell, usage: EnvironmentUsage, over: bool) -> list[Block]:
        blocks: list[Block] = []
        for grant in usage.grants:
            if grant.memory_used is not None:
                known = cell.peaks.get(grant.device, 0)
                cell.peaks[grant.device] = max(known, grant.memory_used)
            label = self._labels.get(grant.device, words.short(grant.device))
            if usage.simulated:
                label += " (SIMULATED)"
            used = "use unknown" if grant.memory_used is None else words.in_use(grant.memory_used)
            said = [f"{label}: {used} of {format_memory(grant.memory)}"]
            if over and grant.device in cell.peaks:
                said.append(f"at most {words.in_use(cell.peaks[grant.device])} in this cell")
            elif grant.utilization is not None:
                said.append(f"device {grant.utilization} % busy")
            if over:
                said.append(format_duration(time.monotonic() - cell.began))
            blocks.append(Meter(meter(grant).parts, ", ".join(said)))
        return blocks


def _one_line(blocks: Sequence[Block]) -> str:
    return "; ".join(
        block.caption if isinstance(block, Meter) else to_text([block]) for block in blocks
    )


_current: Watcher | None = None
"""The watcher of this process: it has one IPython."""


def switch(session: Session, on: bool) -> PageView:
    """Begin to watch the cells of this process, or end it; twice is as once."""
    global _current
    if _current is not None:
        _current.stop()
        _current = None
    if not on:
        return PageView([Text(OFF)])
    _current = Watcher(session)
    _current.start()
    return PageView([Text(ON.format(_current.outlet().after))])
