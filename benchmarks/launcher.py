"""Starts ipykernel with or without our startup file, and says when it is ready.

``python launcher.py STARTUP -f CONNECTION_FILE``: STARTUP is a directory of IPython configuration,
or ``-`` for none. The address in ``BENCH_READY`` gets the time at which the kernel can run a cell,
the processor time it took by then, and the time its startup files took, all in nanoseconds.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from ipykernel.kernelapp import IPKernelApp
from IPython.core.application import ENV_CONFIG_DIRS, SYSTEM_CONFIG_DIRS


class Timed(IPKernelApp):
    """A kernel that knows how long its startup files took."""

    startup_ns = 0

    def init_code(self) -> None:
        begin = time.monotonic_ns()
        super().init_code()
        self.startup_ns = time.monotonic_ns() - begin


if __name__ == "__main__":
    startup = sys.argv[1]
    ENV_CONFIG_DIRS[:] = [] if startup == "-" else [startup]
    SYSTEM_CONFIG_DIRS[:] = []
    app = Timed.instance()
    app.initialize(sys.argv[2:])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        said = f"{time.monotonic_ns()} {time.process_time_ns()} {app.startup_ns}"
        told.sendto(said.encode(), os.environ["BENCH_READY"])
    app.start()
