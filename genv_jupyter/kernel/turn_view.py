"""How the waiting for a turn is shown: one line that changes, and is short when it is over."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError
from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import WIDTH, Text, columns, printable, to_html, to_text
from genv_jupyter.turns import Turn, TurnPlace
from genv_jupyter.units import format_duration


def behind(turn: Turn) -> str:
    """Say who is ahead: ``llm.ipynb (ada) has it since 14:02 (3 min), 2 more wait``."""
    holding = [place for place in turn.ahead if place.state == "holding"]
    waiting = [place for place in turn.ahead if place.state == "waiting"]
    said = [f"{_who(place)} has it since {words.since(place.since)}" for place in holding[:2]]
    if len(holding) > 2:
        said.append(f"{len(holding) - 2} more have part of it")
    if waiting:
        said.append(f"{len(waiting)} {'waits' if len(waiting) == 1 else 'wait'} before you")
    return ", ".join(said)


def _who(place: TurnPlace) -> str:
    if place.environment is None:
        return "a process that cannot be named"
    name = place.name or f"environment {place.environment[:8]}"
    return f"{name} ({place.user})" if place.user else name


class Line:
    """One line about the waiting; nothing is shown where nobody has to wait."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.began = time.monotonic()
        self.labels: dict[str, str] | None = None
        self.shown = ""
        self.handle: Any = None
        self.notebook = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.shown and not self.shown.startswith("The turn"):
            self._show("The turn has not come.")

    def tell(self, turn: Turn) -> None:
        """Say how it stands."""
        who = behind(turn)
        if not who and not self.shown:
            return  # it is ours in a moment
        where = " and ".join(self._labels().get(it, words.short(it)) for it in turn.devices)
        self._show(f"Waiting for the turn on {where}: {who or 'next'}.")

    def ready(self) -> None:
        """Say that it has come, if anything was said."""
        if self.shown:
            waited = format_duration(time.monotonic() - self.began)
            self._show(f"The turn came after {waited}.")

    def _labels(self) -> dict[str, str]:
        if self.labels is None:
            try:
                devices = self.client.devices()
                self.labels = {it.uuid: words.device_label(it) for it in devices}
            except GpuError:  # the beginning of the UUID does it too
                self.labels = {}
        return self.labels

    def _show(self, said: str) -> None:
        if said == self.shown:
            return
        first, self.shown = not self.shown, said
        if first:
            self.notebook = _in_notebook()
        if self.notebook:
            self._display(said, first=first)
        elif sys.stderr.isatty():
            line = printable(said)
            line = line if columns(line) < WIDTH else line[: WIDTH - 2] + "…"
            end = "\n" if said.startswith("The turn") else ""
            sys.stderr.write(f"\r{line}\x1b[K{end}")
            sys.stderr.flush()
        elif first or said.startswith("The turn"):
            print(printable(said), file=sys.stderr, flush=True)  # a log: it is not written over

    def _display(self, said: str, *, first: bool) -> None:
        from IPython.display import DisplayHandle

        blocks = [Text(said, "dim")]
        bundle = {"text/plain": to_text(blocks), "text/html": to_html(blocks)}
        if first:
            self.handle = DisplayHandle()  # type: ignore[no-untyped-call]
            self.handle.display(bundle, raw=True)
        else:
            self.handle.update(bundle, raw=True)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None
