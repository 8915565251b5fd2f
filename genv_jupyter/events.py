"""Wire types of the event stream: what changes, and what is wanted of a Jupyter server."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from genv_jupyter.leftovers import Leftover
from genv_jupyter.model import BrokerHealth, Device, Environment, EnvironmentUsage, QueueTicket
from genv_jupyter.notices import Notice


class Want(Struct, frozen=True, kw_only=True):
    """What the broker wants a server to do with one of its kernels.

    ``launch`` is the start of the kernel that is to be restarted, interrupted or shut down: a later
    one is not. ``idle`` says that this is no matter for a kernel that executes something by now.
    """

    kernel: str
    action: Literal["apply", "restart", "interrupt", "shutdown"]
    environ: dict[str, str | None] | None = None
    launch: int | None = None
    idle: bool = False


class RuleActions(Struct, frozen=True, kw_only=True):
    """How often a rule has taken a step, such as ``cap`` and ``terminate``."""

    rule: str
    action: str
    count: int


class Figures(Struct, frozen=True, kw_only=True):
    """What the broker has counted since it began, for Prometheus.

    ``attaches`` are how many took no longer than the first, second, … of ``bounds`` (seconds; each
    attach is counted once), and last how many took longer; ``attach_seconds`` is their sum.
    """

    bounds: tuple[float, ...]
    attaches: tuple[int, ...]
    attach_seconds: float
    rules: tuple[RuleActions, ...]


class Event(Struct, frozen=True, kw_only=True):
    """One message of the event stream.

    The first has ``snapshot`` true and everything; later ones carry the devices and environments
    that changed, whole, and the ids that are gone. ``usage`` is there only for the owner and
    admins, and told anew when what an environment uses, or the advice on it, has changed.
    ``notices`` and ``leftovers`` are all that there are for the owner and admins, and ``queue`` is
    everybody's, told whole when one has changed (``null``: none has). ``figures`` are for
    Jupyter servers, which do not pass them on.
    """

    revision: int
    snapshot: bool = False
    devices: tuple[Device, ...] = ()
    environments: tuple[Environment, ...] = ()
    usage: tuple[EnvironmentUsage, ...] = ()
    removed: tuple[str, ...] = ()
    wants: tuple[Want, ...] = ()
    health: BrokerHealth | None = None
    notices: tuple[Notice, ...] | None = None
    leftovers: tuple[Leftover, ...] | None = None
    queue: tuple[QueueTicket, ...] | None = None
    figures: Figures | None = None
