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
    "With --as root opens it, in a directory of root's. [default: hub/hub.sock beside the other; "
    "/run/genv-jupyter-hub/hub.sock beside its default; none with --as]",
)
@click.option(
    "--state",
    type=click.Path(),
    help="Where the ledger is kept. [default: /var/lib/genv-jupyter]",
)
@click.option(
    "--as",
    "name",
    help="Run as this user, with a small helper that stays root; only root may say that.",
)
@click.option(
    "--mps-directory",
    type=click.Path(readable=False),
    help="With --as: where the helper has users' MPS daemons. [default: /run/genv-jupyter-mps]",
)
@click.option(
    "--mps-program",
    type=click.Path(),
    help="With --as: nvidia-cuda-mps-control, where it is in none of the system's directories.",
)
@click.option(
    "--lowest-uid",
    type=click.IntRange(1),
    help="With --as: the first uid of a person; the helper does nothing to others. [default: 1000]",
)
@click.option("--generate-config", is_flag=True, help="Write a configuration file, and leave.")
@click.option("--check-config", is_flag=True, help="Read the configuration, and leave.")
def broker(
    config: str | None,
    socket: str | None,
    hub_socket: str | None,
    state: str | None,
    name: str | None,
    mps_directory: str | None,
    mps_program: str | None,
    lowest_uid: int | None,
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
    if name is not None and os.geteuid() != 0:
        raise click.UsageError("--as is for root: start it as root, or leave --as out.")
    command = [sys.executable, "-P", "-m", "genv_jupyter.broker", what]
    for option, word in (("--as", name), ("--lowest-uid", lowest_uid)):
        if word is not None:
            command += [option, str(word)]
    for option, value in (
        ("--mps-directory", mps_directory),
        ("--mps-program", mps_program),
        ("--config", config),
        ("--socket", socket),
        ("--hub-socket", hub_socket),
        ("--state", state),
    ):
        if value is not None:
            command += [option, os.path.abspath(value)]  # noqa: PTH100 (a name, and perhaps no file)
    sys.stdout.flush()
    os.execv(sys.executable, command)
