"""The block under the traceback of an out-of-memory error: the numbers, and the likely cure."""

from __future__ import annotations

from collections.abc import Iterator

from genv_jupyter.kernel import words
from genv_jupyter.kernel.document import Block, Fill, Meter, Text, Title, facts
from genv_jupyter.kernel.memory_errors import Failure
from genv_jupyter.kernel.oom import Facts
from genv_jupyter.kernel.views import View
from genv_jupyter.model import Device, DeviceGrant, Environment, Grant, Process
from genv_jupyter.units import format_memory

NEAR = 0.85
"""The share of a cap from which on the cap is what stopped it: allocators ask in large pieces."""
MUCH = 256 * 2**20
"""Bytes that are worth a sentence."""
_MIB = 2**20
_GIGA = 10**9


class OutOfMemoryView(View):
    """What was full, who has how much of it, and what helps."""

    def __init__(self, failure: Failure, facts: Facts) -> None:
        self.failure = failure
        self.facts = facts
        self.cures = tuple(cures(failure, facts))

    def blocks(self) -> list[Block]:
        """Return the numbers of each device of this kernel, then the cures."""
        known = self.facts
        asked = self.failure.asked
        wanted = f", {format_memory(asked)} more were asked for" if asked else ""
        title = f"Out of GPU memory{wanted} ({self.failure.framework})."
        found: list[Block] = [Title(title, words.mark(known.devices), small=True)]
        for device in _concerned(known):
            found.extend(self._device(device))
        if known.torch is not None:
            kept = known.torch.reserved - known.torch.allocated
            found.append(
                Text(
                    f"PyTorch: {format_memory(known.torch.allocated)} in tensors, "
                    f"{format_memory(kept)} kept for re-use.",
                    "dim",
                    2,
                )
            )
        if known.silent:
            found.append(Text(f"{known.silent} So who else is on the device is not known.", "dim"))
        found.extend(Text(cure, "warn") for cure in self.cures)
        return found

    def _device(self, device: Device) -> Iterator[Block]:
        known = self.facts
        used, grant = own_use(known, device.uuid), _grant(known.environment, device.uuid)
        here = "not known" if used is None else format_memory(used)
        label = words.device_label(device)
        if device.memory_total and used is not None and device.memory_used is not None:
            caption = f"{format_memory(device.memory_used)} of {format_memory(device.memory_total)}"
            yield Meter(_parts(known, device, used), f"{label}: {caption} in use")
        rows = [("here", here if grant is None else f"{here}, {_allowed(grant)}")]
        rows += [("others", said) for said in _holders(known, device)]
        outside = (device.external_memory or 0, device.unattributed_memory or 0)
        if outside[0] >= _MIB:
            rows.append(("outside", f"{format_memory(outside[0])} of external processes"))
        if outside[1] >= _MIB:
            rows.append(("unknown", f"{format_memory(outside[1])} that no process here explains"))
        yield facts(rows if device.memory_total else [(label, rows[0][1]), *rows[1:]])


def cures(failure: Failure, known: Facts) -> Iterator[str]:
    """Yield what is likely to help, the most likely first."""
    leftovers = list(_leftovers(known))
    yield from leftovers
    environment = known.environment
    grants = () if environment is None else environment.grants
    held = [grant for grant in grants if grant.state != "draining"]
    if known.silent:
        yield "A smaller batch needs less; `%gpu` says what this kernel may use."
    elif not held and grants:
        yield (
            "What was attached here has been given back, and is only still in use: attach again, "
            "or restart the kernel."
        )
    elif not held:
        yield (
            "Nothing is attached here, so nothing is kept free for this kernel: "
            f"{_attach(failure.asked or 4 * _GIGA, known)}."
        )
    else:
        by_uuid = {device.uuid: device for device in known.devices}
        fullest = max(held, key=lambda grant: _fullness(known, grant))
        device = by_uuid.get(fullest.device)
        if _fullness(known, fullest, failure.asked or 0) >= NEAR or device is None:
            yield from _at_the_cap(failure, known, fullest, device)
        elif not leftovers or _others(known, device):
            yield from _below_the_cap(failure, known, fullest, device)
    yield from _cache(known)


def own_use(known: Facts, device: str) -> int | None:
    """Return the bytes in use here: the reading, or PyTorch's number where that is later."""
    read = known.used.get(device)
    several = sum(grant.state != "draining" for grant in _grants(known)) > 1
    if known.torch is None or several:  # PyTorch's number is of all its devices together
        return read
    return max(read or 0, known.torch.reserved)


def _at_the_cap(
    failure: Failure, known: Facts, grant: Grant, device: Device | None
) -> Iterator[str]:
    used = own_use(known, grant.device) or 0
    need = int(max(grant.memory * 1.25, used + (failure.asked or 0) * 1.1))
    room = max((words.free_memory(it) or 0 for it in known.devices), default=0)
    here = 0 if device is None else words.free_memory(device) or 0
    if grant.exclusive:
        yield "All of the device was in use by this kernel alone: a smaller batch, or less at once."
    elif need <= max(room, here + grant.memory):
        larger = _attach(need, known)
        yield f"A smaller batch fits, or a larger cap, for which there is room: {larger}."
    else:
        holders = [] if device is None else [words.holder(it) for it in _others(known, device)]
        ask = f", unless {' or '.join(holders[:3])} can give up some" if holders else ""
        yield f"A smaller batch: the cap is reached, and no device has room for a larger one{ask}."


def _below_the_cap(failure: Failure, known: Facts, grant: Grant, device: Device) -> Iterator[str]:
    outside, unknown = device.external_memory or 0, device.unattributed_memory or 0
    others = _others(known, device)
    left = grant.memory - (own_use(known, grant.device) or 0)
    if (max(outside, unknown) < MUCH and not others) or _roomy(device, failure.asked):
        yield (
            "The cap was not reached, as far as can be seen: a framework's own limit may be lower, "
            "or one piece too large. A smaller batch needs less."
        )
        return
    yield (
        f"{format_memory(left)} of the cap were left here, but not on the device: "
        "it is others who have filled it."
    )
    if outside >= MUCH:
        yield (
            f"External processes hold {format_memory(outside)}: `nvidia-smi` names them; ask "
            "whoever runs them."
        )
    if unknown >= MUCH:
        yield (
            f"{format_memory(unknown)} are held where nothing can be seen from here (another "
            "container, a dead process): only the host's administrator can tell."
        )
    if others:
        names = " and ".join(f"{words.holder(it)} ({it.user})" for it in others[:3])
        theirs = sum(it.memory for it in others)
        taken = _taken(known, device)
        if taken >= theirs + MUCH:
            has = "uses {}, and has a cap of {}" if len(others) == 1 else "use {} of their {}"
            yield (
                f"{names} {has.format(format_memory(taken), format_memory(theirs))}: more than "
                "was given."
            )
        else:
            yield f"Ask {names} whether some can be given up."


def _roomy(device: Device, asked: int | None) -> bool:
    """Say whether the device was not full: it had what was asked for, or else half of itself."""
    if device.memory_total is None or device.memory_used is None:
        return False
    return device.memory_total - device.memory_used >= (asked or device.memory_total // 2)


def _leftovers(known: Facts) -> Iterator[str]:
    """Name processes that were started from here, and hold memory of their own."""
    environment = known.environment
    processes: tuple[Process, ...] = () if environment is None else environment.processes or ()
    for process in sorted(processes, key=lambda it: -(it.memory or 0))[:4]:
        mine = process.pid in (known.pid, None if environment is None else environment.pid)
        if not mine and (process.memory or 0) >= MUCH:
            name, holds = process.name or "A process", format_memory(process.memory)
            if not known.pid:
                where, how = f"pid {process.pid} of the host", "end it."
            else:
                where, how = f"pid {process.pid}", f"end it: `!kill {process.pid}`."
            yield f"{name} ({where}), started from here, holds {holds}: if it is a leftover, {how}"


def _cache(known: Facts) -> Iterator[str]:
    kept = 0 if known.torch is None else known.torch.reserved - known.torch.allocated
    also = f"{format_memory(kept)} in PyTorch's cache and what " if kept >= MUCH else "What "
    yield f"{also}the traceback keeps alive comes back with `%gpu empty-cache`."


def _attach(need: int, known: Facts) -> str:
    """Return the line that attaches that much, and how it gets into force."""
    line = f"%gpu attach --memory {max(1, -(-need // _GIGA))}G"
    environment = known.environment
    if environment is None or environment.server is None:
        return f"restart {'IPython' if known.terminal else 'the kernel'}, and first `{line}`"
    return f"`{line} --restart`"


def _allowed(grant: Grant) -> str:
    if grant.state == "draining":
        return "given back already"
    if grant.exclusive:
        return f"with the whole device attached ({format_memory(grant.memory)})"
    strength = grant.limits.memory.strength
    weak = ", which nothing enforces" if strength == "none" else ""
    return f"of a cap of {format_memory(grant.memory)}{weak}"


def _holders(known: Facts, device: Device) -> Iterator[str]:
    for it in _others(known, device)[:4]:
        yield (
            f"{words.holder(it)} ({it.user}): {words.amount(it)}, since {words.since(it.since)}"
            + ("" if it.state == "granted" else f", {it.state}")
        )
    more = len(_others(known, device)) - 4
    if more > 0:
        yield f"and {more} more: `%gpu devices`"


def _concerned(known: Facts) -> list[Device]:
    """Return the devices of this kernel; without a grant, those that it is seen on."""
    mine = {grant.device for grant in _grants(known)} | known.used.keys()
    return [device for device in known.devices if device.uuid in mine][:8]


def _parts(known: Facts, device: Device, used: int) -> tuple[tuple[Fill, float], ...]:
    whole = device.memory_total or 1
    outside = (device.external_memory or 0) + (device.unattributed_memory or 0)
    others = max(0, _taken(known, device))
    return (("mine", used / whole), ("held", others / whole), ("outside", outside / whole))


def _taken(known: Facts, device: Device) -> int:
    """Return what the other environments really use of a device."""
    outside = (device.external_memory or 0) + (device.unattributed_memory or 0)
    return (device.memory_used or 0) - (known.used.get(device.uuid) or 0) - outside


def _fullness(known: Facts, grant: Grant, more: int = 0) -> float:
    return ((own_use(known, grant.device) or 0) + more) / max(1, grant.memory)


def _others(known: Facts, device: Device) -> list[DeviceGrant]:
    mine = None if known.environment is None else known.environment.id
    return [it for it in device.grants if it.environment != mine]


def _grants(known: Facts) -> tuple[Grant, ...]:
    return () if known.environment is None else known.environment.grants


def _grant(environment: Environment | None, device: str) -> Grant | None:
    grants = () if environment is None else environment.grants
    return next((grant for grant in grants if grant.device == device), None)
