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
    return parser.parse_args()


def _main(options: argparse.Namespace) -> int:
    if options.generate_config:
        from genv_jupyter.broker.config import generate

        sys.stdout.write(generate())
        return 0
    if options.check_config:
        from genv_jupyter.broker.config import check

        return check(options.config)
    if options.host:
        from genv_jupyter.broker import host

        return host.main(
            config=options.config,
            path=options.socket or host.HOST_SOCKET,
            hub_path=options.hub_socket,
            state=options.state or Path(os.environ.get("STATE_DIRECTORY") or host.STATE),
        )
    # Whoever started it may live for months, or end in a second: neither may have to wait for it.
    if options.detach and os.fork():
        os._exit(0)
    from genv_jupyter.broker import process

    return process.main(replace=options.replace, idle_seconds=options.idle_seconds)


if __name__ == "__main__":
    sys.exit(_main(_options()))
