"""``jupyter gpu broker``: the daemon of a host. It becomes the broker's own program."""

from __future__ import annotations

import os
import sys

import click


@click.command(short_help="Serve all users of this host (for administrators).")
@click.option(
    "--config",
    type=click.Path(),
    help="Configuration, a file or a directory. [default: /etc/genv-jupyter]",
)
@click.option(
    "--socket",
    type=click.Path(),
    help="Where to listen. [default: /run/genv-jupyter/broker.sock]",
)
@click.option(
    "--hub-socket",
    type=click.Path(),
    help="Where to listen for users of a JupyterHub, with HubAccess.api_url. "
    "[default: hub/hub.sock beside the other]",
)
@click.option(
    "--state",
    type=click.Path(),
    help="Where the ledger is kept. [default: /var/lib/genv-jupyter]",
)
@click.option("--generate-config", is_flag=True, help="Write a configuration file, and leave.")
@click.option("--check-config", is_flag=True, help="Read the configuration, and leave.")
def broker(
    config: str | None,
    socket: str | None,
    hub_socket: str | None,
    state: str | None,
    generate_config: bool,
    check_config: bool,
) -> None:
    """Serve all users of this host: one ledger, and quotas for everybody.

    For administrators; usually started by systemd. Jupyter servers, kernels and terminals find its
    socket by themselves and then start no broker of their own. SIGHUP reads the configuration
    again.
    """
    what = "--host"
    if generate_config:
        what = "--generate-config"
    elif check_config:
        what = "--check-config"
    command = [sys.executable, "-m", "genv_jupyter.broker", what]
    for name, value in (
        ("--config", config),
        ("--socket", socket),
        ("--hub-socket", hub_socket),
        ("--state", state),
    ):
        if value is not None:
            command += [name, os.path.abspath(value)]  # noqa: PTH100 (a name, and perhaps no file)
    sys.stdout.flush()
    os.execv(sys.executable, command)
