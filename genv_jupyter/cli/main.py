"""``jupyter gpu``: the same verbs in a terminal."""

from __future__ import annotations

from typing import Any

import click

from genv_jupyter import __version__
from genv_jupyter.cli import (
    audit,
    broker,
    changing,
    completion,
    leftovers,
    lining,
    looking,
    maintenance,
    notices,
    quota,
    report,
    run,
    turn,
)
from genv_jupyter.cli.output import STATUSES


class Group(click.Group):
    """The command, called by the name that people type."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Run; ``jupyter gpu`` starts ``jupyter-gpu``, which completion goes by."""
        more.setdefault("prog_name", "jupyter gpu")
        more.setdefault("complete_var", completion.VARIABLE)
        return super().main(*args, **more)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their use."""
        return list(self.commands)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog=f"\b\n{STATUSES}",
)
@click.version_option(__version__, prog_name="genv-jupyter")
def main() -> None:
    """GPUs of this host, shared between notebooks and terminals."""


for command in (
    run.run,
    run.shell,
    turn.turn,
    changing.attach,
    changing.release,
    lining.extend,
    lining.keep,
    lining.queue,
    lining.leave,
    lining.ask,
    looking.status,
    looking.devices,
    looking.envs,
    notices.notices,
    report.report,
    leftovers.leftovers,
    looking.doctor_command,
    looking.health,
    quota.quota,
    audit.audit,
    maintenance.drain,
    maintenance.undrain,
    broker.broker,
    completion.completion,
):
    main.add_command(command)
