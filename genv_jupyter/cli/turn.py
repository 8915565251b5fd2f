"""``jupyter gpu turn``: a program in its environment's turn on shared devices.

As with ``run`` this very process becomes the program. The connection and the locks that are the
turn go with it through ``exec``, and end with it.
"""

from __future__ import annotations

import click

from genv_jupyter.api.client import Client
from genv_jupyter.cli.launching import Launcher, become, check_program, interrupted
from genv_jupyter.cli.output import NOT_STARTED, WAIT_OVER, fail, say
from genv_jupyter.errors import GpuError
from genv_jupyter.kernel.turn import Holding, environment_here
from genv_jupyter.kernel.turn_view import Line
from genv_jupyter.units import parse_duration


@click.command(cls=Launcher, options_metavar="[OPTIONS] -- PROGRAM [ARGUMENTS]...")
@click.option("-t", "--timeout", help="How long to wait at most, such as 5m.")
def turn(program: list[str], timeout: str | None) -> None:
    """Run a program when its turn on the shared GPUs comes.

    \b
      jupyter gpu turn -- python train.py
      jupyter gpu turn --timeout 30m -- make evaluation

    In a terminal of an environment: `jupyter gpu shell`, or a notebook's. The next one's turn
    comes when the program ends.
    """
    check_program(program[0])
    try:
        seconds = None if timeout is None else parse_duration(timeout)
        holding = _wait(seconds)
    except GpuError as error:
        fail(error, WAIT_OVER if "timeout" in error.details else NOT_STARTED)
    except KeyboardInterrupt:
        interrupted()
    holding.keep_through_exec()
    become(program)


def _wait(timeout: int | None) -> Holding:
    client, holding = Client(), Holding()
    environment = environment_here(client)
    if environment is None:
        say("No environment here, so there is no turn to wait for: it runs at once.")
        return holding
    with Line(client) as line:
        try:
            holding.take(client, environment.id, timeout, line.tell)
        except BaseException:
            holding.give_up()
            raise
        line.ready()
    return holding
