"""Where the broker of this user is found, and how one is started.

The rendezvous is an abstract socket (``man 7 unix``): it is the same for an ssh login, a
Hub-spawned server and a batch job of one user on one host, whatever their ``TMPDIR`` and
``XDG_RUNTIME_DIR``; it is the lock (a second bind fails); and it vanishes with its process.
Anybody may bind or connect to an abstract name, so both sides check the uid of the other.

Where the host has a daemon, its socket in ``/run`` is there instead, and nobody starts a broker of
their own: while the daemon is down, GPUs are not managed, and that is said.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from genv_jupyter.errors import BrokerDown, GpuError, from_payload
from genv_jupyter.isolation.processes import peer

PASSED_ON = {
    "GENV_JUPYTER_HOME",
    "GENV_JUPYTER_SIMULATE",
    "GENV_JUPYTER_SOCKET",
    "GENV_JUPYTER_FAILPOINT",
}
# LD_LIBRARY_PATH stays: on some hosts the driver's libraries are found by nothing else.
_OWN = ("GENV_JUPYTER_SOCKET", "GENV_JUPYTER_HOME", "GENV_JUPYTER_SIMULATE")
_SCRUBBED = re.compile(r"(CUDA|GENV|NVIDIA_VISIBLE)_?.*|NVML_.*|LD_PRELOAD|LD_AUDIT|JPY_.*")

HOST_SOCKET = "/run/genv-jupyter/broker.sock"
"""Where the daemon of a host listens; ``GENV_JUPYTER_HOST_SOCKET`` names another path."""

HUB_SOCKET = "/run/genv-jupyter-hub/hub.sock"
"""Where it listens for users of a JupyterHub; containers have no more of it than this directory.

It is root's, and not in the daemon's own: whoever could rename it would choose what is mounted.
"""

_DOCTOR = "`jupyter gpu doctor` says more."


def address(home: str | None = None, simulate: str | None = None) -> str:
    """Return the address of this user's broker: a path, or an abstract name with its NUL.

    ``GENV_JUPYTER_SOCKET`` names a path. Otherwise the name holds the uid, and a hash of
    ``GENV_JUPYTER_HOME`` and ``GENV_JUPYTER_SIMULATE`` where they are set: simulated devices have
    a broker of their own.
    """
    explicit = os.environ.get("GENV_JUPYTER_SOCKET")
    if explicit:
        return explicit
    host = host_socket() if home is None and simulate is None else None
    if host is not None:
        return host
    home = os.environ.get("GENV_JUPYTER_HOME", "") if home is None else home
    simulate = os.environ.get("GENV_JUPYTER_SIMULATE", "") if simulate is None else simulate
    name = f"\0genv-jupyter/{os.getuid()}"
    if home or simulate:
        where = str(Path(home).resolve()) if home else ""
        name += "/" + hashlib.sha256(f"{where}\0{simulate}".encode()).hexdigest()[:16]
    return name


def host_socket() -> str | None:
    """Return the path of the host daemon's socket, where there is one.

    Whoever has a directory or simulated devices of their own is not its client. The path outlives
    a daemon that is down: then there is still no other broker.
    """
    if any(os.environ.get(name) for name in _OWN):
        return None
    chosen = os.environ.get("GENV_JUPYTER_HOST_SOCKET")
    if chosen is not None:
        return chosen or None
    return next((path for path in (HOST_SOCKET, HUB_SOCKET) if os.path.lexists(path)), None)


def connect(timeout: float = 5.0) -> socket.socket:
    """Connect to the broker.

    Raises
    ------
    OSError
        Nobody listens there.
    BrokerDown
        Another user's process has taken the name.
    """
    where = address()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _reach(sock, where, timeout)
        uid = peer(sock)[1]
        if not where.startswith("\0") and not _believed(where, uid):
            raise BrokerDown(
                f"At {where} listens a process of uid {uid}, which is not believed.",
                hint="Set GENV_JUPYTER_SOCKET to a path in a directory of your own, or unset it.",
            )
        if where.startswith("\0") and uid != os.getuid():
            raise BrokerDown(
                f"The name of your GPU broker on this host is taken by a process of uid {uid}.",
                hint="Tell the administrator of the host; set GENV_JUPYTER_HOME to a directory of "
                "your own to go on meanwhile.",
            )
    except BaseException:
        sock.close()
        raise
    return sock


def _reach(sock: socket.socket, where: str, timeout: float) -> None:
    """Connect, and wait in line where many do.

    A socket with a timeout of Python's would not wait: it is refused at once while the broker's
    line of those to be let in is full.
    """
    limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        sock.connect(where)
    except BlockingIOError:
        raise TimeoutError(f"nobody was let in for {timeout:g} s") from None
    sock.settimeout(timeout)


def _believed(where: str, uid: int) -> bool:
    """Say whether a process of that uid may be the broker at a path."""
    if uid in (0, os.getuid()):
        return True
    # A daemon that runs as a user of its own: root has given it the directory, and nobody else
    # could have put one there.
    directory = Path(where).absolute().parent
    try:
        found, above = directory.stat(), directory.parent.stat()
    except OSError:
        return False
    shared = (found.st_mode | above.st_mode) & 0o022
    return not shared and found.st_uid in (0, uid) and above.st_uid == 0


@functools.lru_cache(maxsize=32)
def version_key(version: str) -> tuple[int, ...]:
    """Return what versions are compared by: the numbers before any suffix."""
    # Nine digits of each: Python refuses to read thousands of them.
    numbers = re.findall(r"[0-9]+", version.split("+")[0][:100])
    return tuple(int(number[:9]) for number in numbers[:3])


def ensure_broker(timeout: float = 15.0) -> socket.socket:
    """Connect to the broker, starting one if there is none.

    Two callers at once may both start one: the second finds the name bound and leaves.

    Raises
    ------
    GpuError
        It could not be started (``BrokerDown``), or says itself why it cannot serve.
    """
    try:
        return connect()
    except OSError as error:
        if host_socket() is not None:
            raise BrokerDown(
                f"The GPU broker of this host does not answer ({error}).",
                hint="Kernels go on with what they have, and it is tried again. An administrator "
                "sees more with `systemctl status genv-jupyter` and `journalctl -u genv-jupyter`.",
            ) from error
    deadline = time.monotonic() + timeout
    start_broker(timeout)
    while True:
        try:
            return connect()
        except OSError as error:
            if time.monotonic() > deadline:
                raise BrokerDown(
                    f"The GPU broker was started and does not answer ({error}).",
                    hint=_DOCTOR,
                ) from error
            time.sleep(0.02)


def start_broker(timeout: float = 15.0, *, replace: bool = False) -> None:
    """Start a broker of this user and wait until it listens.

    It gets a session of its own (a plain child would end with the kernel's process group) and an
    environment without what a kernel's environment hides from CUDA.
    """
    from genv_jupyter.isolation import inherited

    environ = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or not _SCRUBBED.fullmatch(name)
    }
    for name in ("GENV_JUPYTER_HOME", "GENV_JUPYTER_SOCKET"):
        if environ.get(name):  # it works in another directory
            environ[name] = str(Path(environ[name]).absolute())
    if pipe := inherited.mps_pipe():
        environ[inherited.OPERATORS_MPS] = pipe
    command = [sys.executable, "-m", "genv_jupyter.broker", "--user", "--detach"]
    if replace:
        command.append("--replace")
    try:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise BrokerDown(f"The GPU broker could not be started: {error}.", hint=_DOCTOR) from error
    with process:  # it detaches itself, so there is nothing to wait for
        assert process.stdout is not None and process.stderr is not None
        if not select.select([process.stdout], [], [], timeout)[0]:
            raise BrokerDown(
                f"The GPU broker did not start within {timeout:.0f} s.",
                hint=_DOCTOR,
            )
        line = process.stdout.readline()
        if not line:
            raise _failed(process.stderr.read())
    answer = json.loads(line)
    if "code" in answer:
        raise from_payload(answer, 503)


def _failed(stderr: bytes) -> GpuError:
    """Turn a broker that ended before its first word into an error with the cause."""
    said = stderr.decode(errors="replace").strip().splitlines()
    last = said[-1] if said else "it ended without a word"
    if "No module named" in last:
        return BrokerDown(
            f"The GPU broker cannot run in this Python environment ({last}).",
            hint="Only the kernel part of genv-jupyter is installed here: start JupyterLab with "
            "genv-jupyter, or `pip install genv-jupyter` here.",
        )
    return BrokerDown(f"The GPU broker could not be started: {last}", hint=_DOCTOR)
