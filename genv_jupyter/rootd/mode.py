"""``python -m genv_jupyter.rootd.mode UUID MODE EXPECTED``: set a compute mode, and leave.

The root helper loads no driver itself. What was found, and what went wrong, is written as JSON.
"""

from __future__ import annotations

import sys

import msgspec

from genv_jupyter.devices.nvml import NvmlSource

SECONDS = 20.0
"""For a driver that is loaded for this alone."""


def main(device: str, mode: str, expected: str) -> None:
    """Set it, unless it is another than expected."""
    source = NvmlSource(deadline=SECONDS)
    done = source.set_compute_mode(device, mode, expected=expected)
    source.close()
    sys.stdout.buffer.write(msgspec.json.encode((done.found, done.trouble)))


if __name__ == "__main__":
    main(*sys.argv[1:])
