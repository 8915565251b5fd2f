"""``%gpu panel``: live bars and buttons under a cell, made of ipywidgets where they are installed.

Two threads touch the widgets: the main one when a button is clicked, and IPykernel's thread for
output, which a poll hands its findings to; that one goes on while a cell runs. A lock keeps them
apart. Without a view on a screen, as far as the front end tells, nothing is polled.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from genv_jupyter.api.client import Client
from genv_jupyter.demand import read_request
from genv_jupyter.errors import BadRequest, GpuError
from genv_jupyter.kernel.document import Block, Text, Title, to_html, to_text
from genv_jupyter.kernel.session import Session
from genv_jupyter.kernel.usage import look
from genv_jupyter.kernel.views import PageView, StatusView, View, room

CALL_SECONDS = 2.0
EVERY = 1.0
THREAD = "genv-jupyter-panel"
AMOUNTS = ("0.25", "0.5", "0.75", "1", "4G")

MISSING = (
    "The panel needs ipywidgets: pip install ipywidgets (here, and where Jupyter itself runs). "
    "`%gpu usage` shows the same numbers."
)
TERMINAL = "The panel is for notebooks; `%gpu usage` shows the same numbers here."


class Panel(View):
    """A panel on this process. Elsewhere than on a screen (an export) it is a picture of itself."""

    def __init__(self, session: Session, widgets: Any) -> None:
        self.session = session
        self.closed = False
        client = Client(start=False, timeout=CALL_SECONDS)  # starts no broker
        self._watching = session.beside(client)
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self._shown = True
        self._told: list[Block] = []
        self._found: list[Block] = []
        self._schedule = _schedule_of(session.shell)
        self._build(widgets)
        self._set(*self._look())
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        if self._schedule is not None:
            self._thread.start()
        atexit.register(self._end)

    def _build(self, widgets: Any) -> None:
        self._picture, self._message = widgets.HTML(), widgets.HTML()
        self._amount = widgets.Combobox(
            value="0.5",
            options=AMOUNTS,
            description="Amount",
            tooltip="A part of a GPU (0.5), whole GPUs (1, 2), or memory (4G)",
            layout=widgets.Layout(width="160px"),
            style={"description_width": "initial"},
        )
        self._buttons = {
            name: widgets.Button(description=text, tooltip=tip, layout=widgets.Layout(width="auto"))
            for name, text, tip in (
                ("attach", "Attach", "Attach this amount instead of what is attached"),
                ("release", "Release", "Give everything back"),
                ("empty", "Empty cache", "Let go of old outputs and of what frameworks keep"),
                ("close", "Close", "Close this panel; what is attached stays"),
            )
        }
        for name, button in self._buttons.items():
            button.on_click(getattr(self, f"_{name}"))
        row = widgets.HBox(
            [self._amount, *self._buttons.values()], layout=widgets.Layout(flex_flow="row wrap")
        )
        self.root = widgets.VBox([self._picture, row, self._message])
        self.root.observe(self._count, "_view_count")
        self.root._view_count = 0  # from now on front ends count their views of it
        if self.root.comm is not None:
            self.root.comm.on_close(lambda message: self.close())
        self._all = [self._picture, self._message, self._amount, *self._buttons.values(), row]

    # -- how it looks -----------------------------------------------------------------------------

    def blocks(self) -> list[Block]:
        return [*self._found, *self._told]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        data = {"text/plain": to_text(self.blocks()), "text/html": to_html(self.blocks())}
        if not self.closed:
            data.update(self.root._repr_mimebundle_())
            data["text/plain"] = to_text(self.blocks())
        return data

    def _look(self, session: Session | None = None) -> tuple[list[Block], bool]:
        """Return what there is to see, and whether there is something to release."""
        try:
            view = look(session or self.session)
        except (GpuError, msgspec.MsgspecError) as error:  # also an answer of another version
            return [Text(str(error), "warn")], False
        free = [Text(room(view.devices), "dim", 2)] if view.devices else []
        return [*view.blocks(), *free], bool(view.usage and view.usage.grants)

    def _set(self, blocks: list[Block], held: bool) -> None:
        with self._lock:
            if self.closed:
                return
            self._found = blocks
            self._picture.value = to_html(blocks)
            self._buttons["release"].disabled = not held

    def _tell(self, blocks: list[Block]) -> None:
        with self._lock:
            if not self.closed:
                self._told = blocks
                self._message.value = to_html(blocks) if blocks else ""

    # -- buttons, in the main thread --------------------------------------------------------------

    def _attach(self, button: Any) -> None:
        def attach() -> View:
            request = read_request(self._amount.value)
            if request is None:
                raise BadRequest("Say an amount first.", hint="Such as 0.5, 1 or 4G.")
            return self.session.attach(request)

        self._do(attach)

    def _release(self, button: Any) -> None:
        self._do(self.session.detach)

    def _empty(self, button: Any) -> None:
        from genv_jupyter.kernel import cache

        self._do(lambda: cache.empty(self.session), "Emptying …")

    def _close(self, button: Any) -> None:
        self.close()

    def _do(self, verb: Callable[[], View], meanwhile: str = "") -> None:
        """Do what a button says; what is refused is said in the panel."""
        self._tell([Text(meanwhile, "dim")] if meanwhile else [])
        try:
            self._tell(_outcome(verb()))
        except GpuError as error:
            self._tell([Text(str(error), "warn")])
        self._set(*self._look())

    # -- the poll ---------------------------------------------------------------------------------

    def _count(self, change: Any) -> None:
        """A view has come or gone."""
        if change["new"] is not None and (change["new"] or change["old"]):
            with self._changed:
                self._shown = change["new"] > 0
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(EVERY if self._shown else None)
                if self.closed:
                    break
                shown = self._shown
            if shown:
                found = self._look(self._watching)
                schedule = self._schedule
                if schedule is not None:
                    schedule(partial(self._set, *found))
        self._watching.client.close()

    # -- its end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Take it off the screen, and end what it has started; again is nothing."""
        with self._lock:
            if self.closed:
                return
            self._end()
        atexit.unregister(self._end)
        for widget in (self.root, *self._all):
            for part in (getattr(widget, "style", None), getattr(widget, "layout", None), widget):
                if part is not None:
                    part.close()

    def _end(self) -> None:
        """End the poll; all that is left to do when the kernel ends, its sockets perhaps before."""
        with self._changed:
            self.closed = True
            self._changed.notify()


def _schedule_of(shell: Any) -> Callable[[Callable[[], None]], None] | None:
    """Return how a call gets into the kernel's thread for output; ``None`` where there is none."""
    thread = getattr(getattr(shell, "kernel", None), "iopub_thread", None)
    schedule: Callable[[Callable[[], None]], None] | None = getattr(thread, "schedule", None)
    return schedule


def _outcome(view: View) -> list[Block]:
    """Return what a verb has to say, without what the panel shows anyway."""
    if isinstance(view, StatusView):
        return [Text(view.head), *(Text(remark, "warn") for remark in view.remarks)]
    return [Text(block.text) if isinstance(block, Title) else block for block in view.blocks()]


_current: Panel | None = None
"""The panel of this process: a second one takes its place."""


def show(session: Session) -> View:
    """Return a panel on this process, or one line that says why there is none."""
    global _current
    if session.terminal:
        return PageView([Text(TERMINAL)])
    try:
        import ipywidgets
    except ImportError:
        return PageView([Text(MISSING)])
    if _current is not None:
        _current.close()
    _current = Panel(session, ipywidgets)
    return _current
