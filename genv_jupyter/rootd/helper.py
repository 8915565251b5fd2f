"""The root helper: a handful of verbs for the broker, which may be anybody's puppet.

It is what remains root while the broker, who parses what everybody sends, does not. Each argument
is checked here as if an attacker had written it. Verbs that wait for a user's processes run in
threads, a few at a time for each user: what belongs to one user stalls nobody else.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pwd import getpwuid
from typing import Any, NamedTuple

import msgspec

from genv_jupyter.isolation import evidence, processes
from genv_jupyter.isolation.mps_runner import (
    ASK_SECONDS,
    MpsError,
    MpsGone,
    MpsHangs,
    Runner,
    name_of,
)
from genv_jupyter.rootd import wire

MOST_DAEMONS = 256
MOST_AT_ONCE = 256
MOST_FOR_ONE = 4
"""Verbs of one kind under way, at all and for one user: what hangs is in no other kind's way."""

SIGNALS_AT_ONCE = 20
SIGNALS_A_SECOND = 1.0

MODE_SECONDS = 45.0
RESERVED = range(61184, 65536)
"""Uids that no person has: systemd's dynamic users, nobody, and -1 in 16 bits."""

SCREENS = ("/dev/dri/card",)
"""What a program that drives a screen has open, and only whoever sits there or is in its group may
open: ``/dev/nvidia-modeset`` and ``renderD128`` are everybody's on many hosts."""

ENVIRONMENT = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
SYSTEMD = Path("/run/systemd/system")


class Rules(NamedTuple):
    """What root has decided when it started us."""

    room: Path
    program: str | None
    lowest_uid: int
    broker_uid: int


class Refused(Exception):
    """A check was not passed; the text says which."""


class Hostile(Exception):
    """What was received is no question: the connection ends."""


class Helper:
    """Serves one broker until that is gone."""

    def __init__(self, sock: socket.socket, rules: Rules) -> None:
        self.sock = sock
        self.rules = rules
        self.clock: Callable[[], float] = time.monotonic
        self._decode = msgspec.json.Decoder(wire.Question).decode
        self._speaking = threading.Lock()
        self._counting = threading.Lock()
        self._under_way: Counter[tuple[type[wire.Ask], int]] = Counter()
        self._signals = float(SIGNALS_AT_ONCE)
        self._counted_at = self.clock()

    def serve(self) -> None:
        """Obey until the broker is gone.

        Raises
        ------
        Hostile
            It has sent what is no question.
        """
        while (ask := self._receive()) is not None:
            try:
                self._take(ask)
            except Refused as refused:
                self._refuse(ask, refused)

    def _receive(self) -> wire.Question | None:
        # No room for descriptors: those that are sent all the same are closed, and flagged.
        data, _, flags, _ = self.sock.recvmsg(wire.MOST_ASKED)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Hostile("a message was too long, or came with descriptors")
        if not data:
            return None
        try:
            return self._decode(data)
        except msgspec.MsgspecError as error:
            raise Hostile(f"a message is no question: {error}") from None

    def _take(self, ask: wire.Question) -> None:
        match ask:
            case wire.Hello():
                self._answer(ask, self._here())
            case wire.MpsLeft():
                self._answer(ask, self._left())
            case wire.Signal():
                self._ordinary(ask.uid)
                self._beside(ask.uid, ask, lambda: self._signal(ask))
            case wire.Look():
                uids = evidence.uids(ask.pid) or (-1,)
                self._beside(uids[0], ask, lambda: self._look(ask))
            case wire.SetMode():
                self._beside(-2, ask, lambda: _set_mode(ask))
            case wire.Mps() | wire.MpsSay() | wire.MpsLog():
                self._ordinary(ask.uid)
                if self.rules.program is None:
                    raise Refused("no program for MPS was found when the helper was started")
                self._beside(ask.uid, ask, lambda: self._mps(ask))

    # -- answers ----------------------------------------------------------------------------------

    def _beside(self, uid: int, ask: wire.Question, verb: Callable[[], Any]) -> None:
        """Do what may wait in a thread, unless too much is under way already."""
        what = type(ask), uid
        with self._counting:
            for_one = self._under_way[what]
            at_all = sum(many for (kind, _), many in self._under_way.items() if kind is what[0])
            if for_one >= MOST_FOR_ONE or at_all >= MOST_AT_ONCE:
                raise Refused(f"too much is under way ({for_one} for uid {uid}, {at_all} at all)")
            self._under_way[what] += 1
        threading.Thread(target=self._do, args=(what, ask, verb), daemon=True).start()

    def _do(
        self, what: tuple[type[wire.Ask], int], ask: wire.Question, verb: Callable[[], Any]
    ) -> None:
        try:
            self._answer(ask, verb())
        except Refused as refused:
            self._refuse(ask, refused)
        except MpsHangs as error:
            self._send(wire.Answer(id=ask.id, error=str(error), kind="hangs"))
        except MpsGone as error:
            self._send(wire.Answer(id=ask.id, error=str(error), kind="gone"))
        except (MpsError, OSError, subprocess.SubprocessError) as error:
            self._send(wire.Answer(id=ask.id, error=str(error), kind="failed"))
        finally:
            with self._counting:
                self._under_way[what] -= 1
                if not self._under_way[what]:
                    del self._under_way[what]

    def _refuse(self, ask: wire.Question, refused: Refused) -> None:
        say(f"refused {type(ask).__name__}: {refused}")
        self._send(wire.Answer(id=ask.id, error=str(refused), kind="refused"))

    def _answer(self, ask: wire.Question, value: Any) -> None:
        if isinstance(value, File):
            with value.file:
                self._send(wire.Answer(id=ask.id), [value.file.fileno()])
        else:
            self._send(wire.Answer(id=ask.id, value=value))

    def _send(self, answer: wire.Answer, descriptors: list[int] | None = None) -> None:
        with self._speaking, suppress(OSError):  # the broker is gone: the next receive says so
            socket.send_fds(self.sock, [msgspec.json.encode(answer)], descriptors or [])

    # -- users and processes ----------------------------------------------------------------------

    def _ordinary(self, uid: int) -> None:
        """Refuse root, the system's users, and the broker's own."""
        if uid < self.rules.lowest_uid or uid in RESERVED:
            raise Refused(f"uid {uid} is root's, the system's or nobody's")
        if uid == self.rules.broker_uid:
            raise Refused(f"uid {uid} is the broker's own")

    def _look(self, ask: wire.Look) -> wire.Seen | None:
        uids = set(evidence.uids(ask.pid) or ())
        seen = self._seen(ask.pid, uids.pop() if len(uids) == 1 else None)
        # Another process could have come to have its pid: what was seen may be that one's.
        return seen if processes.start_of(ask.pid) == ask.start else None

    def _seen(self, pid: int, uid: int | None) -> wire.Seen:
        try:
            self._ordinary(-1 if uid is None else uid)
        except Refused:
            return wire.Seen(uid=uid)
        variables = processes.variables(pid, (processes.MARKER, PIPE))
        cuda, driver = evidence.runs_cuda(pid, processes.read), evidence.of_driver(pid)
        if variables is None:
            return wire.Seen(uid=uid, cuda=cuda, driver=driver)
        named, pipe = variables[processes.MARKER], variables[PIPE]
        proper = named is not None and ENVIRONMENT.fullmatch(named) is not None
        return wire.Seen(
            uid=uid,
            environment=named if proper else None,
            claims=named is not None,
            pipe=None if pipe is None else "".join(filter(str.isprintable, pipe[:107])),
            cuda=cuda,
            driver=driver,
        )

    def _signal(self, ask: wire.Signal) -> bool:
        """Signal a process, held by its descriptor while it is looked at.

        Should it become a set-uid program in the meantime, it gets what its user may send it too.
        """
        if ask.pid in (1, os.getpid(), os.getppid()):
            raise Refused(f"process {ask.pid} is never signalled")
        try:
            descriptor = os.pidfd_open(ask.pid)
        except ProcessLookupError:
            return False
        try:
            if processes.start_of(ask.pid) != ask.start:
                return False
            if (why := _spared(ask.pid, ask.uid)) is not None:
                raise Refused(f"process {ask.pid} {why}")
            self._count_signal()
            say(f"{ask.signal} to process {ask.pid} of uid {ask.uid}")
            signal.pidfd_send_signal(descriptor, signal.Signals[ask.signal])
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _count_signal(self) -> None:
        with self._counting:
            now = self.clock()
            more = (now - self._counted_at) * SIGNALS_A_SECOND
            self._signals, self._counted_at = min(self._signals + more, SIGNALS_AT_ONCE), now
            if self._signals < 1:
                raise Refused("too many signals were sent in the last seconds")
            self._signals -= 1

    # -- MPS --------------------------------------------------------------------------------------

    def _here(self) -> wire.Here:
        missing = None if self.rules.program else "nvidia-cuda-mps-control is not installed"
        room, lowest = str(self.rules.room), self.rules.lowest_uid
        return wire.Here(room=room, lowest_uid=lowest, missing=missing)

    def _mps(self, ask: wire.Mps | wire.MpsSay | wire.MpsLog) -> Any:
        runner = self._runner(ask.uid, ask.device)
        match ask:
            case wire.MpsSay():
                word, *rest = ask.command.split()
                return runner.ask(
                    ask.command, ASK_SECONDS + (int(rest[-1]) if word == "quit" else 0)
                )
            case wire.MpsLog():
                return File(runner.log(ask.name))
            case wire.Mps(verb="pid"):
                return runner.pid()
            case wire.Mps(verb="kill"):
                say(f"killing the MPS daemon of uid {ask.uid} on {ask.device}")
                return runner.kill()
            case wire.Mps(verb="start"):
                return self._start(runner)
            case wire.Mps(verb="remove"):
                if runner.pid() is not None:
                    raise Refused("a daemon runs there")
                runner.remove()
                return self._note_of(runner).unlink(missing_ok=True)

    def _start(self, runner: Runner) -> None:
        try:
            getpwuid(runner.uid)
        except KeyError:
            raise Refused(f"uid {runner.uid} has no account on this host") from None
        note = self._note_of(runner)
        if not note.exists():
            if len(list(self.rules.room.glob("*.post"))) >= MOST_DAEMONS:
                raise Refused(f"there are {MOST_DAEMONS} MPS daemons already")
            note.write_text(f"{runner.uid} {runner.device}")
        say(f"MPS daemon of uid {runner.uid} on {runner.device}: to be there")
        runner.start()

    def _runner(self, uid: int, device: str) -> Runner:
        assert self.rules.program is not None, "refused before"
        name = name_of(device, uid)
        scope: tuple[str, ...] = ()
        if SYSTEMD.is_dir():  # outside of the unit, which may be restarted: CUDA goes on there
            unit = f"genv-jupyter-mps-{uid}-{name}-{os.urandom(3).hex()}.scope"
            scope = ("systemd-run", "--scope", "--quiet", "--collect", f"--unit={unit}", "--")
        return Runner(self.rules.room / name, device, self.rules.program, uid, scope)

    def _note_of(self, runner: Runner) -> Path:
        """Return the file that says whose a directory is, for a broker that has forgotten."""
        return runner.directory.with_suffix(".post")

    def _left(self) -> list[tuple[int, str]]:
        found = []
        for note in sorted(self.rules.room.glob("*.post")):
            uid, _, device = note.read_text().partition(" ")
            with suppress(ValueError):  # we were ended while it was written: nothing was started
                found.append((int(uid), device))
        return found


class File(NamedTuple):
    """A descriptor as an answer."""

    file: Any


def _spared(pid: int, uid: int) -> str | None:
    """Say why a process is never signalled; ``None`` where it may be."""
    if set(evidence.uids(pid) or ()) != {uid}:
        return f"is not uid {uid}'s alone"
    if evidence.of_driver(pid):
        return "is a part of the driver"
    if evidence.roots_program(pid) is not None and evidence.has_open(pid, SCREENS):
        return "draws on a screen"
    if not evidence.runs_cuda(pid, processes.read):
        return "has no CUDA"
    return None


def _set_mode(ask: wire.SetMode) -> tuple[str | None, str | None]:
    """Set a compute mode in a process of its own: the driver may hang in there."""
    command = [sys.executable, "-I", "-m", "genv_jupyter.rootd.mode"]
    done = subprocess.run(
        [*command, ask.device, ask.mode, ask.expected],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=MODE_SECONDS,
        check=True,
        cwd="/",
    )
    say(f"compute mode of {ask.device}: {ask.expected} to {ask.mode}")
    return msgspec.json.decode(done.stdout, type=tuple[str | None, str | None])


def say(words: str) -> None:
    """Write a line for the journal; nothing in it breaks the line."""
    line = "".join(letter if letter.isprintable() else "?" for letter in words)
    with suppress(OSError):  # whoever reads it is gone
        os.write(2, f"root helper: {line}\n".encode(errors="replace"))


def run(sock: socket.socket, rules: Rules) -> int:
    """Be the helper of one broker; return an exit status."""
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # it ends when the broker has
    try:
        Helper(sock, rules).serve()
    except Hostile as hostile:
        say(f"the connection is ended: {hostile}")
        return 3
    except ConnectionError:  # the broker is gone in this very moment
        pass
    return 0
