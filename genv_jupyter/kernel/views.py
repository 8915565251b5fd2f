"""What the verbs of ``%gpu`` return: values that show themselves in notebooks and terminals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from genv_jupyter import maintenance
from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import (
    HERE,
    Block,
    Fill,
    Legend,
    Meter,
    Table,
    Text,
    Title,
    to_html,
    to_text,
)
from genv_jupyter.model import BrokerHealth, Device, Environment
from genv_jupyter.units import format_duration, format_memory

ATTACH_EXAMPLES = (
    "%gpu attach 0.5           half of a GPU\n"
    "%gpu attach 1             a whole GPU\n"
    "%gpu attach --memory 4G   a place of 4 GB on a shared GPU"
)

_FIRST = 8


class View:
    """Something to look at; ``str()`` is its text, and its attributes are the facts behind it."""

    def blocks(self) -> list[Block]:
        """Return what is said."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return to_text(self.blocks())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        return to_html(self.blocks())


class StatusView(View):
    """What this process has.

    Parameters
    ----------
    environment
        The environment of this process; ``None`` when the broker knows of none.
    devices
        The devices that this process could ask for.
    visible
        ``CUDA_VISIBLE_DEVICES`` of this process; ``None`` when it is not set.
    terminal
        Whether this is an IPython in a terminal.
    head
        A sentence about what has just happened.
    remarks
        What else should be known: warnings, one sentence each.
    """

    def __init__(
        self,
        environment: Environment | None,
        devices: Sequence[Device],
        health: BrokerHealth | None = None,
        *,
        visible: str | None = None,
        terminal: bool = False,
        head: str = "",
        remarks: Sequence[str] = (),
    ) -> None:
        self.environment = environment
        self.devices = tuple(devices)
        self.health = health
        self.visible = visible
        self.terminal = terminal
        self.head = head
        self.remarks = tuple(remarks)

    def blocks(self) -> list[Block]:
        environment = self.environment
        mark = words.mark(self.devices)
        found: list[Block] = []
        if environment is not None and environment.grants:
            found.append(Title(self.head or self._holding(environment), mark))
            found.append(self._grants(environment))
            if environment.request is not None:
                found.append(Text(f"Asked for: {words.asked(environment.request)}.", "dim", 2))
            if environment.expires is not None:
                found.append(Text(f"A lease: {words.until(environment.expires)}.", "dim", 2))
        else:
            found.append(Title(self.head or self._nothing(), mark))
            found.extend(self._room())
        if environment is not None and environment.pending is not None:
            asked = words.asked(environment.pending)
            found.append(Text(f"In the queue for {asked}: `%gpu queue` says more.", "plain", 2))
        if environment is not None and environment.reason:
            reason = environment.reason
            if self.terminal and environment.cuda == "initialized":
                reason = "CUDA still holds the device in this IPython: leave it to free the device."
            found.append(Text(reason, "warn"))
        found.extend(Text(remark, "warn") for remark in self.remarks)
        if self.health is not None and self.health.driver:
            found.append(Text(self.health.driver, "warn"))
        return found

    def _holding(self, environment: Environment) -> str:
        here = words.here(environment, self.terminal)
        if environment.state == "draining":
            return f"{here} has released its GPU, and still uses it."
        number = sum(grant.state != "draining" for grant in environment.grants)
        return f"{here} has {'a GPU' if number == 1 else f'{number} GPUs'}."

    def _nothing(self) -> str:
        here = words.here(self.environment, self.terminal)
        if self.visible == "":
            return f"{here} has no GPU: they are hidden until one is attached."
        return f"{here} has no grant."

    def _grants(self, environment: Environment) -> Table:
        by_uuid = {device.uuid: device for device in self.devices}
        rows = []
        for grant in environment.grants:
            device = by_uuid.get(grant.device)
            state = grant.state
            if state == "granted" and grant.applied is not None:
                state_text = words.APPLIED[grant.applied]
            else:
                state_text = state
            rows.append(
                (
                    words.device_label(device, grant.device),
                    words.short(grant.device),
                    words.amount(grant),
                    f"since {words.since(grant.since)}, {state_text}",
                )
            )
        return Table(("", "", "", ""), tuple(rows))

    def _room(self) -> list[Block]:
        if not self.devices:
            if self.health is not None and self.health.driver:
                return []  # said below
            return [Text("There is no GPU to attach here; `%gpu doctor` says why.", "warn")]
        return [Text(room(self.devices), "plain", 2), Text(ATTACH_EXAMPLES, "code", 2)]


def room(devices: Sequence[Device]) -> str:
    """Say what is free on each device, of many on the first."""
    said = "; ".join(f"{words.device_label(it)}: {words.free(it)}" for it in devices[:_FIRST])
    more = f" and {len(devices) - _FIRST} more" if len(devices) > _FIRST else ""
    return f"{said}{more}."


class DevicesView(View):
    """Every device of the pool: how full it is, and who holds how much since when."""

    def __init__(
        self,
        devices: Sequence[Device],
        health: BrokerHealth | None = None,
        *,
        mine: str | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self.health = health
        self.mine = mine

    def blocks(self) -> list[Block]:
        found: list[Block] = []
        if self.health is not None and self.health.driver:
            found.append(Text(self.health.driver, "warn"))
        elif not self.devices:
            found.append(Text("There is no GPU here; `%gpu doctor` says why."))
        fills: set[Fill] = set()
        for device in self.devices:
            parts = self._parts(device)
            fills.update(fill for fill, part in parts if part)
            label, uuid = words.device_label(device), words.short(device.uuid)
            name = f"{label} {device.name}" if device.name else label
            title = name if label == uuid else f"{name}, {uuid}"
            found.append(Title(title, words.mark([device]), small=True))
            if device.health != "ok":
                found.append(Text(_HEALTH[device.health], "warn"))
            if device.maintenance is not None:
                found.append(Text(f"{label} is {maintenance.words(device.maintenance)}.", "warn"))
            found.append(Meter(parts, self._caption(device)))
            if device.grants:
                found.append(self._holders(device))
        if fills:
            found.append(Legend(frozenset(fills)))
        return found

    def _parts(self, device: Device) -> tuple[tuple[Fill, float], ...]:
        whole = device.memory_usable or device.memory_total
        if not whole:
            return ()
        parts: list[tuple[Fill, float]] = []
        for grant in device.grants:
            fill: Fill = "mine" if grant.environment == self.mine else "held"
            if grant.state == "draining":
                fill = "draining"
            parts.append((fill, min(1.0, grant.memory / whole)))
        outside = (device.external_memory or 0) + (device.unattributed_memory or 0)
        parts.append(("outside", min(1.0, outside / whole)))
        return tuple(parts)

    def _caption(self, device: Device) -> str:
        said = [words.free(device)]
        if words.free_memory(device) not in (None, device.memory_usable):
            said = [f"{words.free(device)} of {format_memory(device.memory_usable)}"]
        if device.memory_used is not None:
            said.append(f"{words.in_use(device.memory_used)} in use")
        if device.utilization is not None:
            said.append(f"{device.utilization} % busy")
        outside = (device.external_memory or 0) + (device.unattributed_memory or 0)
        if outside:
            said.append(f"{format_memory(outside)} outside")
        return ", ".join(said)

    def _holders(self, device: Device) -> Table:
        rows = tuple(
            (
                words.holder(grant) + (HERE if grant.environment == self.mine else ""),
                grant.user,
                words.amount(grant),
                f"since {words.since(grant.since)}"
                + ("" if grant.state == "granted" else f", {grant.state}"),
            )
            for grant in device.grants
        )
        return Table(("", "", "", ""), rows, 4, keep=(2,), least=22)


_HEALTH = {
    "lost": "This device does not answer any more. Its grants stay with it; the others go on.",
    "unreliable": "The driver's numbers for this device contradict each other.",
    "unknown": "The driver does not answer for this device at present.",
}


class EnvironmentsView(View):
    """Every environment, with what it holds."""

    def __init__(
        self,
        environments: Sequence[Environment],
        devices: Sequence[Device],
        *,
        mine: str | None = None,
    ) -> None:
        self.environments = tuple(environments)
        self.devices = tuple(devices)
        self.mine = mine

    def blocks(self) -> list[Block]:
        title = Title("GPU environments", words.mark(self.devices))
        if not self.environments:
            return [title, Text("There is none: no kernel and no terminal is known here.")]
        by_uuid = {device.uuid: device for device in self.devices}
        ordered = sorted(self.environments, key=lambda it: (not it.grants, it.user, it.created))
        rows = tuple(
            (
                it.id[:8],
                words.label(it) + (HERE if it.id == self.mine else ""),
                it.user,
                _state(it),
                "\n".join(
                    f"{words.device_label(by_uuid.get(grant.device), grant.device)}: "
                    f"{words.amount(grant)}"
                    for grant in it.grants
                )
                or "nothing",
            )
            for it in ordered
        )
        heads = ("id", "name", "user", "state", "holds")
        return [title, Table(heads, rows, keep=(0, 3), least=29)]


def _state(environment: Environment) -> str:
    state: str = "no grant" if environment.state == "released" else environment.state
    if environment.kernel_state in ("idle", "busy"):
        state += f", {environment.kernel_state}"
        if environment.kernel_state == "idle" and environment.idle_since is not None:
            idle = datetime.now(UTC) - environment.idle_since
            state += f" {format_duration(idle.total_seconds())}"
    if environment.expires is not None and environment.grants:
        state += f", until {words.clock(environment.expires)}"
    return state


class PageView(View):
    """A page of blocks that was made elsewhere: help, the doctor's page."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = list(blocks)

    def blocks(self) -> list[Block]:
        return self._blocks
