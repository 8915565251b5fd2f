"""The client of the broker: standard library and msgspec only, so that any kernel can have it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from genv_jupyter.api.caller import Caller
from genv_jupyter.api.connection import EventStream, Stream
from genv_jupyter.errors import BadRequest
from genv_jupyter.leftovers import Leftover
from genv_jupyter.model import (
    AuditEntry,
    BrokerHealth,
    Cuda,
    Device,
    DryRun,
    Environment,
    EnvironmentPatch,
    EnvironmentUsage,
    KernelReport,
    NewEnvironment,
    QueueTicket,
    Request,
    ServerReport,
)
from genv_jupyter.notices import Notice

# What the first `%gpu` does not need is imported when it is asked for.
if TYPE_CHECKING:
    from genv_jupyter.asks import Answer, Ask, Asked
    from genv_jupyter.isolation.smi.report import SmiAnswer, SmiCall
    from genv_jupyter.maintenance import DevicePatch
    from genv_jupyter.quotas import QuotaLimits, QuotaRule, QuotaView
    from genv_jupyter.reports import By, DeviceHistory, EnvironmentHistory, UsageReport
    from genv_jupyter.reserving import NewReservation

TURN_SILENCE = 20.0
"""Seconds: a broker tells those who wait every five seconds how they stand."""


class Client(Caller):
    """The verbs of the broker, as plain calls.

    Each thread has one connection that is kept open; a call that finds it closed (the broker was
    replaced) is repeated once, which is safe since every verb but ``create`` gives the same result
    twice.

    Parameters
    ----------
    start
        Start a broker where none listens.
    timeout
        Seconds for one call.

    Raises
    ------
    GpuError
        From every call: what the broker refused, or ``BrokerDown``.
    """

    # -- devices and environments ------------------------------------------------------------

    def devices(self, server: str | None = None, *, fresh: bool = False) -> list[Device]:
        """Return the devices of this host, or of one server's pool; ``fresh`` reads them anew."""
        query = {"server": server, "fresh": "true" if fresh else None}
        return self._get("devices", list[Device], query)

    def patch_device(self, device: str, patch: DevicePatch) -> Device:
        """Drain a device for maintenance, or put it back: for administrators."""
        return self._send("PATCH", _path("devices", device), patch, Device)

    def environments(self) -> list[Environment]:
        """Return all environments that the caller may see."""
        return self._get("environments", list[Environment])

    def environment(self, environment: str) -> Environment:
        """Return one environment."""
        return self._get(_path("environments", environment), Environment)

    def usage(self, environment: str) -> EnvironmentUsage:
        """Return what an environment really uses; the broker reads the devices once a second."""
        return self._get("usage", EnvironmentUsage, {"environment": environment})

    def device_history(
        self, device: str, since: datetime, step: int | str | None = None
    ) -> DeviceHistory:
        """Return what was seen of a device since then, in points of ``step`` seconds or more."""
        query = {"device": device, "since": since.isoformat(), "step": _text(step)}
        from genv_jupyter.reports import DeviceHistory

        return self._get("usage", DeviceHistory, query)

    def environment_history(
        self, environment: str, since: datetime, step: int | str | None = None
    ) -> EnvironmentHistory:
        """Return what was seen of an environment since then; it may have ended."""
        query = {"environment": environment, "since": since.isoformat(), "step": _text(step)}
        from genv_jupyter.reports import EnvironmentHistory

        return self._get("usage", EnvironmentHistory, query)

    def usage_report(self, since: datetime, by: By = "environment") -> UsageReport:
        """Return what each user, device or environment had since then."""
        from genv_jupyter.reports import UsageReport

        return self._get("usage/report", UsageReport, {"since": since.isoformat(), "by": by})

    def create(self, new: NewEnvironment) -> Environment:
        """Create an environment for a process that no Jupyter server of ours started."""
        return self._send("POST", "environments", new, Environment)

    def attach(
        self, environment: str, request: Request, *, cuda: Cuda = "unknown", restart: bool = False
    ) -> Environment:
        """Ask for devices; the old grants are replaced, or stay when this is refused.

        Parameters
        ----------
        cuda
            What the caller saw in the process just before.
        restart
            The caller will restart the kernel, so it is never too late.

        Returns
        -------
        Environment
            With ``request.wait`` and no room its state is ``waiting``, and ``pending`` what is
            asked for.
        """
        query = {"cuda": cuda, "restart": "true" if restart else None}
        return self._send(
            "PUT", _path("environments", environment), request, Environment, query=query
        )

    def patch(self, environment: str, patch: EnvironmentPatch) -> Environment:
        """Change the name, or report what was applied in the process."""
        return self._send("PATCH", _path("environments", environment), patch, Environment)

    def restart(self, environment: str) -> Environment:
        """Have the server restart the kernel of an environment; the grants are kept."""
        path = _path("environments", environment, "restart")
        return self._send("POST", path, None, Environment)

    def leave(self, environment: str) -> Environment:
        """Take the processes of an environment off MPS: only where they are about to be ended."""
        return self._send("POST", _path("environments", environment, "leave"), None, Environment)

    def detach(
        self, environment: str, *, device: str | None = None, cuda: Cuda = "unknown"
    ) -> Environment:
        """Give everything back, or one device."""
        query = {"device": device, "cuda": cuda}
        path = _path("environments", environment)
        return self._send("DELETE", path, None, Environment, query=query)

    def notices(self) -> list[Notice]:
        """Return what the caller is told about their environments, the oldest first."""
        return self._get("notices", list[Notice])

    def dismiss(self, notice: str) -> None:
        """Do not show a notice any more."""
        self._send("DELETE", _path("notices", notice), None, Any)

    def ask(self, environment: str, body: Ask) -> Asked:
        """Ask those who hold what an environment needs how long still."""
        from genv_jupyter.asks import Asked

        return self._send("POST", _path("environments", environment, "ask"), body, Asked)

    def answer(self, notice: str, body: Answer) -> None:
        """Answer those who have asked: what they need, they read in a notice."""
        self._send("POST", _path("notices", notice, "answer"), body, Any)

    def queue(self) -> list[QueueTicket]:
        """Return who waits for devices, the first first."""
        return self._get("queue", list[QueueTicket])

    def leave_queue(self, ticket: str) -> None:
        """Leave the queue; what has come already stays, and is taken up with this."""
        self._send("DELETE", _path("queue", ticket), None, Any)

    def leftovers(self) -> list[Leftover]:
        """Return the processes that outlived kernels of the caller and still use a device."""
        return self._get("leftovers", list[Leftover])

    def end_process(self, pid: int, start: int) -> Leftover:
        """End a leftover process, that very one and no other that has its pid now."""
        return self._send("DELETE", _path("processes", f"{pid}-{start}"), None, Leftover)

    def nvidia_smi(self, environment: str, call: SmiCall) -> SmiAnswer:
        """Return what nvidia-smi says inside an environment, or is to do."""
        path = _path("environments", environment, "nvidia-smi")
        from genv_jupyter.isolation.smi.report import SmiAnswer

        return self._send("POST", path, call, SmiAnswer)

    def place(self, request: Request, environment: str | None = None) -> DryRun:
        """Say which grants a request would get now, without making them."""
        query = {"environment": environment}
        return self._send("POST", "placements", request, DryRun, query=query)

    def audit(self, search: str | None = None, limit: int | None = None) -> list[AuditEntry]:
        """Return who asked for what, the newest first: for administrators of a host."""
        return self._get("audit", list[AuditEntry], {"search": search, "limit": _text(limit)})

    def reserve(self, new: NewReservation) -> Environment:
        """Reserve devices for a Jupyter server before it starts: for administrators."""
        return self._send("POST", "reservations", new, Environment)

    def quota(self, user: str | None = None) -> QuotaView:
        """Return what the caller may have, or (administrators) somebody else."""
        from genv_jupyter.quotas import QuotaView

        return self._get("quota", QuotaView, {"user": user})

    def quota_rules(self) -> list[QuotaRule]:
        """Return every rule of quotas: for administrators."""
        from genv_jupyter.quotas import QuotaRule

        return self._get("quotas", list[QuotaRule])

    def set_quota(self, scope: str, limits: QuotaLimits) -> None:
        """Set the rule of ``default``, ``group:NAME`` or ``user:NAME``: for administrators."""
        self._send("PUT", _path("quotas", scope), limits, Any)

    def unset_quota(self, scope: str) -> None:
        """Forget a rule that was set: for administrators."""
        self._send("DELETE", _path("quotas", scope), None, Any)

    def health(self) -> BrokerHealth:
        """Return what the broker says of itself and of the driver."""
        return self._get("health", BrokerHealth)

    # -- what a Jupyter server tells ------------------------------------------------------------

    def register_server(self, server: str, report: ServerReport) -> None:
        """Tell that a Jupyter server (or whatever starts kernels) is there."""
        self._send("PUT", _path("servers", server), report, Any)

    def end_server(self, server: str) -> None:
        """Tell that a server leaves in good order, its kernels gone before it."""
        self._send("DELETE", _path("servers", server), None, Any)

    def report_kernel(self, server: str, kernel: str, report: KernelReport) -> Environment:
        """Tell of a kernel's birth, state or restart; its environment comes back."""
        path = _path("servers", server, "kernels", kernel)
        return self._send("PUT", path, report, Environment)

    def end_kernel(self, server: str, kernel: str, launch: int | None = None) -> None:
        """Tell that a kernel is gone for good; with ``launch``, unless a later one is there."""
        query = {"launch": None if launch is None else str(launch)}
        self._send("DELETE", _path("servers", server, "kernels", kernel), None, Any, query=query)

    # -- transport ------------------------------------------------------------------------------

    def events(self, *, since: int | None = None, server: str | None = None) -> EventStream:
        """Open the event stream: a snapshot, then changes. Close it when done."""
        pairs = {"since": None if since is None else str(since), "server": server}
        query = urlencode({key: value for key, value in pairs.items() if value is not None})
        return self._open(EventStream, "GET", f"/v1/events?{query}")

    def turn(
        self, environment: str, *, timeout: float | None = None, since: datetime | None = None
    ) -> Stream:
        """Get in line for the turn on an environment's shared devices: lines of ``Turn``.

        The turn, or the place in line, lasts until the stream is closed or this process ends.
        ``genv_jupyter.turn`` is what programs use.
        """
        pairs = {
            "timeout": None if timeout is None else str(max(1, round(timeout))),
            "since": None if since is None else since.isoformat(),
        }
        query = urlencode({key: value for key, value in pairs.items() if value is not None})
        target = f"/v1/{_path('environments', environment, 'turn')}?{query}"
        return self._open(Stream, "POST", target, TURN_SILENCE)


def _text(value: int | str | None) -> str | None:
    return None if value is None else str(value)


def _path(*parts: str) -> str:
    if not all(parts):
        raise BadRequest("An empty name names nothing.", hint="Say which one is meant.")
    return "/".join(quote(part, safe="", errors="replace") for part in parts)
