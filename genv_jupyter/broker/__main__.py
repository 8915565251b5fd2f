"""``python -m genv_jupyter.broker --user``: started by whoever needs a broker and finds none."""

from __future__ import annotations

import argparse
import os
import sys

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="genv_jupyter.broker", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--user", action="store_true", help="serve this user")
    what.add_argument(
        "--generate-config", action="store_true", help="write a configuration file and leave"
    )
    parser.add_argument("--replace", action="store_true", help="take over from an older version")
    parser.add_argument("--detach", action="store_true", help="go on as nobody's child")
    parser.add_argument(
        "--idle-seconds", type=float, default=300.0, help="leave after that long without use"
    )
    options = parser.parse_args()
    if options.generate_config:
        from genv_jupyter.broker.config import generate

        sys.stdout.write(generate())
        sys.exit()
    # Whoever started it may live for months, or end in a second: neither may have to wait for it.
    if options.detach and os.fork():
        os._exit(0)
    from genv_jupyter.broker.process import main

    sys.exit(main(replace=options.replace, idle_seconds=options.idle_seconds))
