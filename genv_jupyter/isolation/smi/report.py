"""What an environment's nvidia-smi has to say: the devices, their caps, and who is on them."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from genv_jupyter.details import Details

MIB = 2**20


class App(Struct, frozen=True, kw_only=True):
    """A process of the environment. ``memory`` in bytes; ``kind``: compute, graphics or mps."""

    pid: int
    name: str
    memory: int | None
    kind: str = "compute"

    @property
    def letters(self) -> str:
        """The kind as nvidia-smi writes it."""
        return {"graphics": "G", "mps": "M+C"}.get(self.kind, "C")


class Card(Struct, frozen=True, kw_only=True):
    """One device as its environment sees it.

    ``index`` counts the environment's devices. ``total`` is the cap and ``used`` what the
    environment's own processes hold, in bytes; ``None`` is unknown everywhere. ``parent`` and
    ``instance`` are of a MIG instance: its GPU's UUID, and the ids of its GPU and compute instance.
    """

    index: int
    uuid: str
    name: str | None = None
    parent: str | None = None
    instance: tuple[int, int] | None = None
    total: int | None = None
    used: int | None = None
    utilization: int | None = None
    compute_mode: str | None = None
    capability: tuple[int, int] | None = None
    details: Details = Details()
    apps: tuple[App, ...] = ()

    @property
    def free(self) -> int | None:
        """Bytes of the cap that are left."""
        if self.total is None or self.used is None:
            return None
        return max(0, self.total - self.used)


class Report(Struct, frozen=True, kw_only=True):
    """All of it at one moment, in local time."""

    cards: tuple[Card, ...]
    driver: str | None
    cuda: int | None
    now: datetime

    @property
    def cuda_text(self) -> str:
        """``12.2``, or ``N/A``."""
        return "N/A" if self.cuda is None else f"{self.cuda // 1000}.{self.cuda % 1000 // 10}"

    @property
    def driver_text(self) -> str:
        """The driver's version, or ``N/A``."""
        return self.driver or "N/A"

    @property
    def moment(self) -> str:
        """The time as C's ``asctime`` writes it."""
        day = f"{self.now.day:2d}"
        return self.now.strftime(f"%a %b {day} %H:%M:%S %Y")


class SmiAnswer(Struct, frozen=True, kw_only=True):
    """What nvidia-smi does: write, and leave with a code; or what else is to be done for it.

    ``file`` is where standard output goes instead (``-f``), and ``repeat`` after how many
    milliseconds to ask again (``-l``), both done by whoever asked. ``pass_through`` are the
    arguments that NVIDIA's own program is to be run with.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    file: str | None = None
    repeat: int | None = None
    pass_through: tuple[str, ...] | None = None


class SmiCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST environments/{id}/nvidia-smi``: a call of nvidia-smi.

    ``args`` are its arguments; ``rounds`` counts those of ``-l`` that have gone before.
    """

    args: tuple[str, ...]
    rounds: int = 0
