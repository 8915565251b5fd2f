"""``python -m genv_jupyter.broker --user``: started by whoever needs a broker and finds none."""

from __future__ import annotations

import argparse
import os
import sys

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="genv_jupyter.broker", description=__doc__)
    parser.add_argument("--user", action="store_true", required=True, help="serve this user")
    parser.add_argument("--replace", action="store_true", help="take over from an older version")
    parser.add_argument("--detach", action="store_true", help="go on as nobody's child")
    parser.add_argument(
        "--idle-seconds", type=float, default=300.0, help="leave after that long without use"
    )
    options = parser.parse_args()
    # Whoever started it may live for months, or end in a second: neither may have to wait for it.
    if options.detach and os.fork():
        os._exit(0)
    from genv_jupyter.broker.process import main

    sys.exit(main(replace=options.replace, idle_seconds=options.idle_seconds))
