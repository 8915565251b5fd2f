"""``python -m genv_jupyter.hub``: the GPU page, started by JupyterHub or beside it."""

from __future__ import annotations

import logging
import os
import sys

import click

from genv_jupyter.api.rendezvous import HUB_SOCKET
from genv_jupyter.errors import GpuError


@click.command()
@click.option(
    "--socket",
    default=lambda: os.environ.get("GENV_JUPYTER_HOST_SOCKET") or HUB_SOCKET,
    help=f"The GPU daemon's socket for users of a Hub. [default: {HUB_SOCKET}]",
)
@click.option("--url", help="Where to listen. [default: where the Hub says]")
def main(socket: str, url: str | None) -> None:
    """Serve the GPU page of a JupyterHub, at /services/gpu."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # The Hub's library writes session ids down there, and what it does not check: we do.
    logging.getLogger("tornado.application").setLevel(logging.ERROR)
    try:
        from genv_jupyter.hub.service import run
    except ImportError as error:
        raise SystemExit(f"Error: {error}. Install genv-jupyter[hub].") from None
    try:
        run(socket, url)
    except GpuError as error:
        raise SystemExit(f"Error: {error}") from None


if __name__ == "__main__":
    main(prog_name="python -m genv_jupyter.hub")
