"""``%%gpu turn``: the cell below is run as IPython runs any other, in its turn."""

from __future__ import annotations

import ast
import contextlib
import sys
from types import SimpleNamespace
from typing import Any

from genv_jupyter.errors import BadRequest, Conflict
from genv_jupyter.kernel.session import Session
from genv_jupyter.kernel.turn import held
from genv_jupyter.kernel.turn_view import Line
from genv_jupyter.model import HELD, Environment

_AWAIT = "A cell that awaits cannot be run by %%gpu turn."


class Cell:
    """The body of a cell, ready to run.

    It is run in the user's namespace by IPython's own ``run_ast_nodes``, so errors have the
    traceback and the line numbers that they would have without the magic, the last expression is
    displayed, and magics and ``_`` work. An error is shown once, and the whole cell has failed.

    Parameters
    ----------
    above
        How many lines stand above the body in the cell.

    Raises
    ------
    BadRequest
        It awaits something.
    """

    def __init__(self, shell: Any, body: str, above: int = 1) -> None:
        self.shell = shell
        self.body = body
        self.outer: Any = shell.displayhook.exec_result
        self.nodes: list[ast.stmt] = []
        source = shell.transform_cell(body)
        if shell.should_run_async(body, transformed_cell=source):
            raise BadRequest(
                _AWAIT,
                hint="Write `async with genv_jupyter.turn():` above what is to be run in turn.",
            )
        number = getattr(self.outer, "execution_count", None) or shell.execution_count
        lines = "\n" * above + source
        self.name = shell.compile.cache(lines, number, raw_code="\n" * above + body)
        try:
            tree = shell.compile.ast_parse(lines, filename=self.name)
            self.nodes = shell.transform_ast(tree).body
        except (SyntaxError, OverflowError, ValueError, TypeError, MemoryError) as error:
            shell.showsyntaxerror()
            self._failed(error)

    def run(self) -> None:
        """Run it; what it raises is shown, and is the outcome of the whole cell."""
        shell = self.shell
        if not self.nodes:
            return
        interactivity = shell.ast_node_interactivity
        if shell.displayhook.semicolon_at_end_of_expression(self.body):
            interactivity = "none"  # IPython looks for it in the whole cell, which is the magic
        result = SimpleNamespace(error_before_exec=None, error_in_exec=None)
        running = shell.run_ast_nodes(
            self.nodes, self.name, interactivity, compiler=shell.compile, result=result
        )
        with contextlib.suppress(StopIteration):  # a coroutine by form: nothing in it awaits
            running.send(None)
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Let the whole cell end with an error that has been shown."""
        if self.outer is None:  # called by other code, which must hear of it
            raise error
        self.outer.error_in_exec = error


def run(session: Session, environment: Environment | None, body: str, timeout: int | None) -> None:
    """Run a cell in the turn of an environment."""
    cell = Cell(session.shell, body)
    if environment is None or not any(it.state in HELD for it in environment.grants):
        print(
            "GPU: nothing is attached here, so there is no turn to wait for.",
            file=sys.stderr,
            flush=True,
        )
        cell.run()
        return
    client = session.client
    with Line(client) as line, contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(client, environment.id, timeout=timeout, told=line.tell))
        except KeyboardInterrupt:
            raise Conflict("You have left the line; the cell was not run.") from None
        line.ready()
        cell.run()
