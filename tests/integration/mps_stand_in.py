#!/usr/bin/env -S python3 -I -S
"""Plays ``nvidia-cuda-mps-control`` where the real one would need a GPU: clients, hangs, faults.

What it says is read from ``stand-in.json`` beside the pipe directory: a map from a command, or its
first word, to the text of the answer; ``null`` hangs. ``-d`` may be mapped to an exit status.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

PIPE = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
SETTINGS = PIPE.parent / "stand-in.json"
DEFAULTS = {"get_default_active_thread_percentage": "100.0", "get_server_list": ""}


def main() -> int:
    says = {**DEFAULTS, **json.loads(SETTINGS.read_text() if SETTINGS.exists() else "{}")}
    if sys.argv[1:] == ["-d"]:
        return daemon(says)
    pid = listener()
    if pid is None:
        print("Cannot find MPS control daemon process")
        return 1
    for line in sys.stdin.read().splitlines():
        words = line.split()
        if words[0] == "quit":
            os.kill(pid, signal.SIGKILL)
            while listener() == pid:
                time.sleep(0.01)
            continue
        answer = says.get(line, says.get(words[0], ""))
        if words[0] == "set_default_device_pinned_mem_limit" and answer == "":
            settings = json.loads(SETTINGS.read_text() if SETTINGS.exists() else "{}")
            settings["get_default_device_pinned_mem_limit"] = words[2]
            SETTINGS.write_text(json.dumps(settings))
        if answer is None:
            time.sleep(60)
        print(answer)
    return 0


def daemon(says: dict[str, str | int | None]) -> int:
    status = says.get("-d", 0)
    if status is None:
        time.sleep(60)
    if status:
        print("An error that only this test knows")
        return int(status)
    (PIPE / "control").unlink(missing_ok=True)
    if os.fork():
        until = time.monotonic() + 4
        while listener() is None and time.monotonic() < until:
            time.sleep(0.01)
        return 0
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(PIPE / "control"))
        sock.listen(4096)  # nobody accepts: each that has asked who listens stays in the queue
        signal.pause()
    return 0


def listener() -> int | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(str(PIPE / "control"))
        except OSError:
            return None
        return struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


if __name__ == "__main__":
    sys.exit(main())
