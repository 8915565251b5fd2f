"""`jupyter gpu` in processes and pseudo-terminals of 80 columns."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import pexpect

GPU = (sys.executable, "-m", "genv_jupyter.cli")
TIMEOUT = 60


def jupyter_gpu(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """Run `jupyter gpu` to its end."""
    done = subprocess.run(
        [*GPU, *arguments], capture_output=True, text=True, timeout=TIMEOUT, **more
    )
    assert "Traceback" not in done.stderr
    return done


class Terminal:
    """A program in a terminal of 80 columns: a shell with job control, unless another is named."""

    def __init__(
        self,
        command: Sequence[str] = ("bash", "--norc", "--noprofile", "-i"),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.child = pexpect.spawn(
            command[0],
            list(command[1:]),
            env={**os.environ, "PS1": "ready> ", "TERM": "dumb", **(environ or {})},
            encoding="utf-8",
            timeout=TIMEOUT,
            dimensions=(24, 80),
        )
        self.pid: int = self.child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(pexpect.ExceptionPexpect):
            self.child.close(force=True)

    def type(self, line: str) -> None:
        self.child.sendline(line)

    def expect(self, pattern: str) -> str:
        """Wait for a text, and return what stood before it and the text."""
        self.child.expect(pattern)
        return str(self.child.before) + str(self.child.after)

    def run(self, line: str) -> str:
        """Type a line and return what came of it; the shell's prompt stands before and after."""
        self.type(line)
        self.expect("ready> ")
        return str(self.child.before).replace("\r\n", "\n").partition("\n")[2]
