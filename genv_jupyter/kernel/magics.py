"""The ``%gpu`` line magic: understands a line, asks the session, returns a view."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError
from genv_jupyter.kernel import parsing, sight
from genv_jupyter.kernel.document import printable
from genv_jupyter.kernel.parsing import TEXT, Command
from genv_jupyter.kernel.session import Ended, Session
from genv_jupyter.kernel.views import DevicesView, EnvironmentsView, View


class GpuMagicFailed(Exception):
    """Ends the cell with one line instead of a traceback; ``error`` is what happened."""

    def __init__(self, text: str, error: GpuError | None = None) -> None:
        super().__init__("\n".join(map(printable, text.splitlines())))
        self.error = error

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback; JupyterLab breaks long lines within words."""
        parts = [str(self)] if self.error is None else [self.error.message, self.error.hint]
        wrap = partial(textwrap.wrap, width=78, break_long_words=False, break_on_hyphens=False)
        return [printable(line) for part in parts for line in wrap(part)]


class GpuMagics:
    """The verbs of ``%gpu`` in one IPython."""

    def __init__(self, shell: Any, client: Client | None = None) -> None:
        self.shell = shell
        self.session = Session(shell, client)
        self.end_watch: Callable[[], None] = lambda: None

    def gpu(self, line: str) -> View:
        """Run one line of ``%gpu``."""
        try:
            return self.run(parsing.read(line))
        except GpuError as error:
            raise GpuMagicFailed(str(error), error) from None
        except Ended as error:
            raise GpuMagicFailed(str(error)) from None

    gpu.__doc__ = TEXT  # what `%gpu?` shows

    def gpu_cell(self, line: str, cell: str) -> None:
        """Run a cell in this environment's turn: ``%%gpu turn``."""
        from genv_jupyter.kernel import turn_cell

        try:
            timeout = parsing.read_cell(line)
            turn_cell.run(self.session, self.session.environment(), cell, timeout)
        except GpuError as error:
            raise GpuMagicFailed(str(error), error) from None

    gpu_cell.__doc__ = TEXT

    def run(self, command: Command) -> View:
        """Do what a line says.

        Raises
        ------
        GpuError
            It was refused, or the broker cannot be reached.
        """
        session = self.session
        match command.verb:
            case "attach":
                from genv_jupyter.kernel import project

                request = project.asked_of(session.environment(), command.request)
                if command.save:
                    print(f"Saved in {project.save(request, project.here())}.", flush=True)
                return session.attach(request, restart=command.restart)
            case "detach":
                return session.detach(command.device, restart=command.restart)
            case "keep":
                return session.keep()
            case "queue" | "leave":
                from genv_jupyter.kernel import lining

                return lining.look(session) if command.verb == "queue" else lining.leave(session)
            case "extend":
                from genv_jupyter.kernel import lining

                return lining.extend(session, command.text)
            case "ask":
                from genv_jupyter.kernel import lining

                return lining.ask(session, command.text)
        return self._look(command)

    def _look(self, command: Command) -> View:
        """Do what changes nothing of what is held."""
        session = self.session
        match command.verb:
            case "help":
                from genv_jupyter.kernel import help

                return help.view()
            case "devices":
                return self._devices()
            case "envs":
                return self._environments()
            case "doctor":
                from genv_jupyter.kernel import doctor

                return doctor.examine(session)
            case "quota":
                from genv_jupyter.kernel.quota import QuotaPage

                return QuotaPage(session.client.quota())
            case "usage":
                from genv_jupyter.kernel import usage

                return usage.look(session)
            case "empty-cache":
                from genv_jupyter.kernel import cache

                return cache.empty(session)
            case "watch":
                from genv_jupyter.kernel import watch

                return watch.switch(session, on=not command.off)
            case "panel":
                from genv_jupyter.kernel import panel

                return panel.show(session)
        return session.status()

    def _devices(self) -> View:
        mine, client = self.session.environment(), self.session.client
        found = self.session.devices(mine)
        return DevicesView(found, client.health(), mine=None if mine is None else mine.id)

    def _environments(self) -> View:
        mine, client = self.session.environment(), self.session.client
        found = client.environments()
        return EnvironmentsView(found, client.devices(), mine=None if mine is None else mine.id)


def load_ipython_extension(shell: Any) -> None:
    """Make ``%gpu`` the real one (``%load_ext genv_jupyter``, or the first use of the stub's)."""
    current = shell.find_line_magic("gpu")
    if isinstance(getattr(current, "__self__", None), GpuMagics):
        return
    magics = GpuMagics(shell)
    shell.register_magic_function(magics.gpu, "line", "gpu")
    shell.register_magic_function(magics.gpu_cell, "cell", "gpu")
    stub = sight.stub()
    if stub is None:  # otherwise it looks at errors for us
        from genv_jupyter.kernel import completing, memory_errors

        magics.end_watch = memory_errors.watch(shell)
        completing.install(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Go back to the stub's lazy ``%gpu``, or to none where the stub is not loaded."""
    stub = sight.stub()
    current = getattr(shell.find_line_magic("gpu"), "__self__", None)
    if isinstance(current, GpuMagics):
        current.end_watch()
        if stub is None:
            from genv_jupyter.kernel import completing

            completing.uninstall(shell)
    if stub is not None:
        shell.register_magic_function(stub.gpu, "line_cell", "gpu")
    else:
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("gpu", None)
