"""``python -m genv_jupyter.broker``: of a user, started by whoever finds none; or of a host."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="genv_jupyter.broker", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--user", action="store_true", help="serve this user")
    what.add_argument("--host", action="store_true", help="serve all users of this host")
    what.add_argument(
        "--generate-config", action="store_true", help="write a configuration file and leave"
    )
    what.add_argument(
        "--check-config", action="store_true", help="read a host's configuration and leave"
    )
    parser.add_argument("--replace", action="store_true", help="take over from an older version")
    parser.add_argument("--detach", action="store_true", help="go on as nobody's child")
    parser.add_argument(
        "--idle-seconds", type=float, default=300.0, help="leave after that long without use"
    )
    parser.add_argument("--config", type=Path, help="a host's configuration: file or directory")
    parser.add_argument("--socket", help="where a host's broker listens")
    parser.add_argument("--hub-socket", help="where it listens for users of a JupyterHub")
    parser.add_argument("--state", type=Path, help="where a host's broker keeps its ledger")
    parser.add_argument("--as", dest="name", help="the user that a host's broker runs as")
    parser.add_argument("--mps-directory", type=Path, help="root's, for the MPS daemons of users")
    parser.add_argument("--mps-program", type=Path, help="NVIDIA's nvidia-cuda-mps-control")
    parser.add_argument("--lowest-uid", type=int, default=1000, help="the first uid of a person")
    parser.add_argument("--helper", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hub-listening", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--programs", help=argparse.SUPPRESS)
    return parser.parse_args()


def _as_root(options: argparse.Namespace) -> int:
    """Start a host's broker as an ordinary user, and its root helper: nothing else is imported."""
    from genv_jupyter.rootd import parent

    socket = Path(options.socket or parent.SOCKET).absolute()
    state = Path(options.state or os.environ.get("STATE_DIRECTORY") or parent.STATE).absolute()
    arguments = ["--socket", str(socket), "--state", str(state)]
    if options.config is not None:
        arguments += ["--config", str(options.config.absolute())]
    handed = "hub" in os.environ.get("LISTEN_FDNAMES", "").split(":")  # by systemd, to the broker
    return parent.main(
        name=options.name,
        arguments=arguments,
        places=[(socket.parent, 0o755), (state, 0o700)],
        room=options.mps_directory or parent.ROOM,
        program=options.mps_program,
        lowest_uid=options.lowest_uid,
        hub=None if handed or options.hub_socket is None else Path(options.hub_socket),
        address=socket,
        shelf=state.with_name(f"{state.name}-bin"),
    )


def _main(options: argparse.Namespace) -> int:
    if options.generate_config:
        from genv_jupyter.broker.config import generate

        sys.stdout.write(generate())
        return 0
    if options.check_config:
        from genv_jupyter.broker.config import check

        return check(options.config)
    if options.host and options.name is not None:
        return _as_root(options)
    if options.host:
        from genv_jupyter.broker import host

        return host.main(
            config=options.config,
            path=options.socket or host.HOST_SOCKET,
            hub_path=options.hub_socket,
            state=options.state or Path(os.environ.get("STATE_DIRECTORY") or host.STATE),
            helper=options.helper,
            hub_descriptor=options.hub_listening,
            programs=options.programs,
        )
    # Whoever started it may live for months, or end in a second: neither may have to wait for it.
    if options.detach and os.fork():
        os._exit(0)
    from genv_jupyter.broker import process

    return process.main(replace=options.replace, idle_seconds=options.idle_seconds)


if __name__ == "__main__":
    sys.exit(_main(_options()))
