"""What is asked for, as it is typed: the same options for every command that asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from genv_jupyter.cli.targets import complete_devices
from genv_jupyter.errors import BadRequest
from genv_jupyter.kernel.parsing import request_of
from genv_jupyter.model import Request
from genv_jupyter.units import WHOLE, parse_share

_OPTIONS = (
    click.argument("share", required=False),
    click.option("-g", "--gpus", metavar="N", help="Whole GPUs; with --memory: that on each of N."),
    click.option("-f", "--fraction", metavar="F", help="A part of one GPU: 0.5 is half of it."),
    click.option("-m", "--memory", metavar="M", help="Memory on a shared GPU: 4G, 4GiB."),
    click.option(
        "-d",
        "--device",
        metavar="GPU",
        multiple=True,
        shell_complete=complete_devices,
        help="This GPU: index, UUID, or its beginning.",
    ),
    click.option("-n", "--name", help="A name for others to see."),
    click.option("-p", "--processes", type=int, help="Divide it among so many, 1 to 48."),
    click.option("--for", "duration", metavar="TIME", help="A lease: until when, such as 2h."),
    click.option(
        "--wait",
        metavar="[TIME]",
        help="Wait in the queue until there is room, for as long as it takes or a TIME.",
    ),
    click.option("--mps/--no-mps", default=None, help="Only under NVIDIA MPS, or without it."),
)


def amount_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add SHARE and the options that say how much of what."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def request_from(asked: dict[str, Any]) -> Request:
    """Make a request of what was typed.

    Raises
    ------
    BadRequest, OutOfRange
        It cannot be understood.
    """
    gpus, fraction = asked.pop("gpus"), asked.pop("fraction")
    if asked["share"] is not None and (gpus is not None or fraction is not None):
        raise BadRequest(
            "How much is said twice.", hint=f"Leave out {asked['share']!r}, or the option."
        )
    request = request_of(asked)
    if gpus is not None:
        share = parse_share(gpus)
        whole = share % WHOLE == 0
        request = msgspec.structs.replace(request, gpus=share // WHOLE if whole else share / WHOLE)
    if fraction is not None:
        request = msgspec.structs.replace(request, fraction=parse_share(fraction) / WHOLE)
    return request
