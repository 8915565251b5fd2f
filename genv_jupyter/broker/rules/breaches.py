"""What a rule finds: who broke it, where, and which processes would have to go."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

Rule = Literal["cap", "foreign_device", "outside", "idle", "lease", "quota"]
RULES: tuple[Rule, ...] = ("cap", "foreign_device", "outside", "idle", "lease", "quota")


class Key(NamedTuple):
    """What makes two breaches the same one; the id of no environment is empty, so is no device.

    ``owner`` is whose it is where it is about no environment.
    """

    rule: Rule
    environment: str
    device: str = ""
    owner: str = ""


class Target(Struct, frozen=True, kw_only=True):
    """A process on a device. ``start`` is in clock ticks since boot, memory in bytes.

    ``kernel`` says that it is the environment's own process, and no child of it. ``spared`` is why
    no rule ever touches it.
    """

    pid: int
    start: int | None
    memory: int | None = None
    name: str | None = None
    kernel: bool = False
    spared: str | None = None

    @property
    def identity(self) -> tuple[int, int | None]:
        """What tells it from every other process."""
        return self.pid, self.start

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.name})" if self.name else "")


class Breach(Struct, frozen=True, kw_only=True):
    """A rule that is broken now.

    ``said`` is a sentence for the owner, ``hint`` what they can do. ``targets`` are the processes
    that would have to go, ``whole`` says that the matter is the environment and not a process.
    """

    key: Key
    said: str
    hint: str
    targets: tuple[Target, ...] = ()
    whole: bool = False
