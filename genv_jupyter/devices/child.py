"""One process that reads the driver, seen from its parent: started, spoken to, ended."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from genv_jupyter.devices import frames

_decoder = msgspec.msgpack.Decoder(frames.Reply)


class ChildEnded(Exception):
    """The child is gone, or speaks nonsense. ``words`` is the last line it wrote to stderr."""

    def __init__(self, returncode: int | None, words: str) -> None:
        super().__init__(words)
        self.returncode = returncode
        self.words = words


class Child:
    """A running child.

    Attributes
    ----------
    touching
        Index of the GPU that the child's present call is about, if it is about one.
    skipped
        Indices of the GPUs that it was told to leave out.
    opened
        What it told when it had the driver open.

    Raises
    ------
    OSError
        It cannot be started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.touching: int | None = None
        self.skipped: tuple[int, ...] = ()
        self.opened: frames.Opened | None = None
        self._waiting: deque[frames.Reply] = deque()
        self._splitter = frames.Splitter()
        self._stderr = os.memfd_create("nvml-child-stderr")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environ,
                cwd="/",  # no folder of the user is kept busy, or searched for modules
                bufsize=0,
                process_group=0,  # a Ctrl-C in the terminal is not for it
            )
        except OSError:
            os.close(self._stderr)
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._ready = select.poll()
        self._ready.register(self._from, select.POLLIN)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def send(self, request: frames.Request) -> None:
        """Send a request; that the child is gone shows in ``receive``."""
        if isinstance(request, frames.Open):
            self.skipped = request.skip
        with suppress(BrokenPipeError):
            frames.write(self._to, request)

    def receive(self, until: float) -> frames.Reply | None:
        """Return the next message, ``None`` when ``until`` (monotonic seconds) has passed.

        ``Touching`` is taken note of, and returned as any other message.

        Raises
        ------
        ChildEnded
            There will be no further message.
        """
        while not self._waiting:
            left = until - time.monotonic()
            if not self._ready.poll(max(0.0, left) * 1000):
                return None
            data = os.read(self._from, 65536)
            if not data:
                raise self._ended()
            try:
                self._waiting.extend(map(_decoder.decode, self._splitter.feed(data)))
            except (ValueError, msgspec.DecodeError) as error:
                self.end()
                raise ChildEnded(None, f"it wrote {error}") from None
        message = self._waiting.popleft()
        if isinstance(message, frames.Touching):
            self.touching = message.index
        elif not isinstance(message, frames.Told):
            self.touching = None
        if isinstance(message, frames.Opened):
            self.opened = message
        return message

    def end(self, wait: float = 0.0) -> None:
        """Kill the child, and wait up to so many seconds until it is gone.

        A process that hangs in the kernel does not go, so nobody waits for it without a limit.
        """
        if self._process.returncode is None:
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        if wait:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait)
        self.gone()

    def gone(self) -> bool:
        """Whether the process has ended; what it left is cleared away then."""
        if self._process.poll() is None:
            return False
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1
        return True

    def _ended(self) -> ChildEnded:
        try:
            returncode: int | None = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            returncode = None
        size = os.fstat(self._stderr).st_size
        tail = os.pread(self._stderr, 2048, max(0, size - 2048)).decode("utf-8", "replace")
        lines = tail.strip().splitlines()
        return ChildEnded(returncode, lines[-1][-200:].strip() if lines else "")
