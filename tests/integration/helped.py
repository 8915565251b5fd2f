"""The root helper on a line of the test's own, and processes of users for it to deal with."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from genv_jupyter.isolation import processes
from genv_jupyter.rootd import wire
from tests.integration.daemons import Daemon, User

RUN = """
import socket, sys
from pathlib import Path
from genv_jupyter.rootd.helper import Rules, run
line, room, program, lowest, broker = sys.argv[1:]
rules = Rules(Path(room), program or None, int(lowest), int(broker))
sys.exit(run(socket.socket(fileno=int(line)), rules))
"""
HOLD = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words) {  /* maps its first file, keeps the others open */
    if (count > 1) {
        int mapped = open(words[1], O_RDONLY);
        if (mmap(0, 4096, PROT_READ, MAP_PRIVATE, mapped, 0) == MAP_FAILED) return 1;
        close(mapped);
    }
    for (int each = 2; each < count; each++)
        if (open(words[each], O_RDONLY) < 0) return 2;
    if (getenv("DEAF")) { signal(SIGINT, SIG_IGN); signal(SIGTERM, SIG_IGN); }
    write(1, "\n", 1);
    for (;;) pause();
}
"""
SECONDS = 30.0


class Helped:
    """A helper, and the broker's end of its line in the test's hands."""

    def __init__(
        self, room: Path, program: str, *, lowest_uid: int = 1000, broker_uid: int = 999
    ) -> None:
        self.room = room
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(SECONDS)
        self.log = room.parent / f"helper-{theirs.fileno()}.log"
        words = [str(theirs.fileno()), str(room), program, str(lowest_uid), str(broker_uid)]
        with theirs, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, *words], pass_fds=[theirs.fileno()], stderr=log
            )
        self.number = 0

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self.sock, [data], list(descriptors))

    def receive(self) -> tuple[wire.Answer, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.sock, wire.MOST_ANSWERED, 4)
        assert data, f"it has ended: {self.log.read_text()}"
        return msgspec.json.decode(data, type=wire.Answer), descriptors

    def submit(self, kind: type[wire.Ask], **fields: Any) -> int:
        self.number += 1
        self.send(msgspec.json.encode(kind(id=self.number, **fields)))
        return self.number

    def ask(self, kind: type[wire.Ask], **fields: Any) -> wire.Answer:
        number = self.submit(kind, **fields)
        answer, descriptors = self.receive()
        for descriptor in descriptors:
            os.close(descriptor)
        assert answer.id == number
        return answer

    def refused(self, kind: type[wire.Ask], **fields: Any) -> str:
        """Ask what is refused, and return the words."""
        answer = self.ask(kind, **fields)
        assert answer.kind == "refused" and answer.error, answer
        return answer.error

    def status(self) -> int:
        """Return the exit status of a helper that is about to end."""
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.sock.close()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()


class Holders:
    """Processes of users that look as if they had CUDA, or not."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.program = place / "hold"
        (place / "hold.c").write_text(HOLD)
        subprocess.run(["gcc", "-o", self.program, place / "hold.c"], check=True)
        self.cuda = place / "libcuda.so.1"
        self.cuda.write_bytes(b"\0" * 4096)
        self.cuda.chmod(0o644)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, uid: int, *files: Path, cuda: bool = True, name: str = "hold", **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start one, under a name, with files open."""
        program = self.place / name
        if not program.exists():
            shutil.copy(self.program, program)
        mapped = self.cuda if cuda else self.place / "hold.c"
        return self.run(uid, [program, mapped, *files], **variables)

    def run(
        self, uid: int, command: list[Any], *, root: bool = False, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Run a command that comes to be such a process; as root, where it gives that up itself."""
        user = 0 if root else uid
        process = subprocess.Popen(
            command,
            user=user,
            group=user,
            extra_groups=[],
            env=variables,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        self.started.append(process)
        assert process.stdout is not None and process.stdout.read(1) == b"\n"
        return process

    def of(self, user: User, **variables: str) -> subprocess.Popen[bytes]:
        return self.start(user.uid, **variables)  # type: ignore[arg-type]

    def end(self) -> None:
        """End all that were started."""
        for process in self.started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.started.clear()


def who(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """Return pid and start of a process, as questions name it."""
    start = processes.start_of(process.pid)
    assert start is not None
    return {"pid": process.pid, "start": start}


def lives(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is None


def eventually(look: Any) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


# -- a daemon with its helper ----------------------------------------------------------------------


REACH = """
set -e
stage=$1; shift
number=0
for needed in $NEEDED; do
    mkdir -p "$stage/$number"; mount --bind "$needed" "$stage/$number"; number=$((number + 1))
done
for hidden in $HIDDEN; do mount -t tmpfs -o mode=755 none "$hidden"; done
number=0
for needed in $NEEDED; do
    mkdir -p "$needed"; mount --bind "$stage/$number" "$needed"; number=$((number + 1))
done
exec "$@"
"""


def reaching(stage: Path, command: list[str]) -> list[str]:
    """Return a command that an ordinary user can go on from.

    The interpreter may lie where only root gets. In a mount namespace of its own what hides it is
    replaced by empty directories, and what is needed put back.
    """
    needed, hidden = set(), set()
    program = Path(sys.executable).resolve()
    for place in map(Path, {sys.prefix, sys.base_prefix, program.parent.parent, Path.cwd()}):
        closed = [it for it in (place, *place.parents) if not it.stat().st_mode & 0o001]
        if closed:
            needed.add(place)
            hidden.add(closed[-1])
    if not hidden:
        return command
    outer = [str(it) for it in needed if needed.isdisjoint(it.parents)]
    variables = [f"NEEDED={' '.join(outer)}", f"HIDDEN={' '.join(map(str, hidden))}"]
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", REACH, "sh", str(stage)]
    return ["env", *variables, *words, *command]


UNIT = Path(__file__).parents[2] / "examples" / "systemd" / "genv-jupyter.service"


def capabilities() -> str:
    """Return what the unit allows, as ``setpriv`` has it."""

    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    return ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in line.split())


class HelpedDaemon(Daemon):
    """A host daemon that is started as root and serves as an ordinary user, with its helper."""

    def __init__(
        self, top: Path, spec: str = "2x24GiB", *, broker: User, program: str = ""
    ) -> None:
        super().__init__(top, spec)
        self.as_user = broker
        self.program = program
        self.room = top / "mps"
        self.broker = 0
        (top / "stage").mkdir()

    def command(self) -> list[str]:
        """Return what starts it."""
        command = [sys.executable, "-P", "-m", "genv_jupyter.broker", "--host"]
        command += ["--as", self.as_user.name, "--mps-directory", str(self.room)]
        command += ["--mps-program", self.program] if self.program else []
        command += ["--config", str(self.settings), "--socket", str(self.socket)]
        # With no more rights than the unit has.
        rights = ["setpriv", f"--bounding-set=-all,{capabilities()}", "--no-new-privs"]
        return reaching(self.top / "stage", [*rights, *command, "--state", str(self.state)])

    def served_by(self, pid: int) -> bool:
        """Say whether the broker of that pid is a child of the one that was started."""
        found = processes.stat(pid)
        self.broker = pid
        return found is not None and found.parent == self.pid

    @property
    def helper(self) -> int | None:
        """The pid of the present helper."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        others = [int(pid) for pid in children if int(pid) != self.broker]
        return others[0] if others else None

    def stop(self) -> int:
        """End it in good order, and the MPS daemons that it leaves; return its status."""
        status = super().stop()
        end_daemons(self.room)
        return status


def end_daemons(room: Path) -> None:
    """End the MPS daemons that a helper leaves: their sockets tell their pids."""
    for path in room.glob("*/control"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            try:
                sock.connect(str(path))
            except OSError:
                continue
            os.kill(processes.peer(sock)[0], signal.SIGKILL)
