"""From arguments and a report to what nvidia-smi writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from genv_jupyter.isolation.smi import properties, query, table
from genv_jupyter.isolation.smi.arguments import Command, Foreign, Wrong, plain, read
from genv_jupyter.isolation.smi.report import Card, Report, SmiAnswer

NOTHING = "No devices were found\n"
NO_DEVICES = 6
"""NVIDIA's exit code for it."""

BYPASS = "GENV_JUPYTER_BYPASS=1 nvidia-smi runs NVIDIA's own for the whole host."
ATTACH = (
    "genv-jupyter: no GPU is attached here. In a notebook: %gpu attach 0.5. "
    "In a terminal: jupyter gpu run.\n"
)
_HELP = f"""\
nvidia-smi inside a GPU environment of genv-jupyter: its devices, its memory, its processes.

    nvidia-smi                          a table of devices and processes
    nvidia-smi -L                       a list of devices
    nvidia-smi -q [-x | -d MEMORY,...]  everything, as text or XML, or parts of it
    nvidia-smi --query-gpu=name,memory.used --format=csv[,noheader][,nounits]
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv[,noheader][,nounits]
    nvidia-smi --help-query-gpu         the properties to ask for; also --help-query-compute-apps
    nvidia-smi --version

    -i ID       index, UUID, PCI bus id or serial number; several with commas
    -f FILE     write there
    -l [S]      again every S seconds; -lms MS every MS milliseconds

Other arguments go to NVIDIA's own nvidia-smi. {BYPASS}
"""


def render(
    arguments: Sequence[str], report: Callable[[], Report], rounds: int = 0, *, hint: str = ATTACH
) -> SmiAnswer:
    """Answer a call of nvidia-smi.

    Parameters
    ----------
    arguments
        As they stood after its name.
    report
        Reads the devices; called only where they are needed.
    rounds
        How many rounds of ``-l`` have gone before.
    hint
        What to write to standard error where the environment has no device.
    """
    try:
        command = read(arguments)
        if command.kind == "help":
            return SmiAnswer(stdout=_HELP)
        if command.kind == "properties":
            return SmiAnswer(stdout=_names(command.properties[0]))
        columns = _columns(command)
        chosen = _chosen(command, arguments)
        seen = report()
        if not seen.cards and command.kind != "version":
            return _nothing(command, hint)
        return _told(command, seen, columns, chosen, rounds)
    except Wrong as wrong:
        return SmiAnswer(stdout=str(wrong), exit_code=wrong.code)
    except Foreign as foreign:
        return _passed_on(foreign, report(), hint)


def _nothing(command: Command, hint: str) -> SmiAnswer:
    if command.kind == "list":
        return SmiAnswer(stdout="No devices found.\n", stderr=hint)
    return SmiAnswer(stdout=NOTHING, stderr=hint, exit_code=NO_DEVICES)


def _told(
    command: Command,
    seen: Report,
    columns: list[properties.Property],
    chosen: frozenset[str] | None,
    rounds: int,
) -> SmiAnswer:
    attached = len(seen.cards)
    if command.ids is not None:
        seen = msgspec.structs.replace(seen, cards=_selected(seen.cards, command.ids))
        if not seen.cards:
            return SmiAnswer(stdout=NOTHING, exit_code=NO_DEVICES)
    if command.kind == "version":
        text = table.version(seen)
    elif command.kind == "list":
        text = table.listing(seen)
    elif command.kind == "query":
        text = query.xml(seen, attached) if command.xml else query.text(seen, attached, chosen)
    elif command.kind == "summary":
        text = table.summary(seen)
    else:
        text = _csv(command, seen, columns, rounds)
    unread = sorted({one.name for one in columns} & properties.UNREAD) if rounds == 0 else []
    note = f"genv-jupyter: not read here: {', '.join(unread)}. {BYPASS}\n" if unread else ""
    return SmiAnswer(stdout=text, stderr=note, file=command.file, repeat=command.loop)


def _csv(command: Command, seen: Report, columns: list[properties.Property], rounds: int) -> str:
    lines = [properties.header(columns)] if command.header and rounds == 0 else []
    rows = properties.gpus if command.kind == "gpus" else properties.apps
    lines += rows(seen, columns, units=command.units)
    return "".join(f"{line}\n" for line in lines)


def _columns(command: Command) -> list[properties.Property]:
    known = {"gpus": properties.GPU, "apps": properties.APPS}.get(command.kind)
    if known is None:
        return []
    try:
        return properties.find(command.properties, known)
    except properties.UnknownProperty as error:
        name = plain(str(error))
        raise Wrong(f'Field "{name}" is not a valid field to query.\n\n', 2) from None


def _chosen(command: Command, arguments: Sequence[str]) -> frozenset[str] | None:
    """Return the labels that ``-d`` chooses."""
    if command.displays is None:
        return None
    for display in command.displays:
        if display in query.UNREAD_DISPLAYS:
            raise Foreign(f"-d {display}", arguments)
        if display not in query.DISPLAYS:
            raise Wrong("Failed to parse --display/-d flags\n", 2)
    return frozenset(label for one in command.displays for label in query.DISPLAYS[one])


def _passed_on(foreign: Foreign, seen: Report, hint: str) -> SmiAnswer:
    """Have NVIDIA's own program run, for the environment's devices where it can be told which."""
    what = plain(foreign.what)
    cards = seen.cards if foreign.ids is None else _selected(seen.cards, foreign.ids)
    if not cards:
        note = "" if seen.cards else hint
        return SmiAnswer(stdout=NOTHING, stderr=note, exit_code=NO_DEVICES)
    arguments = foreign.arguments
    where = "for this environment's devices, whole"
    if foreign.restrictable:
        arguments += ("-i", ",".join(card.uuid for card in cards))
    else:
        where = "for the whole host"
    return SmiAnswer(
        stdout=f"ERROR: Option {what} is not recognized. Please run 'nvidia-smi -h'.\n\n",
        stderr=f"genv-jupyter: {what} is answered by NVIDIA's own nvidia-smi, {where}.\n",
        exit_code=255,
        pass_through=arguments,
    )


def _selected(cards: tuple[Card, ...], ids: Sequence[str]) -> tuple[Card, ...]:
    """Return the devices that ``-i`` names, in their order; what names none is left out."""
    return tuple(card for card in cards if any(_is(card, one) for one in ids))


def _is(card: Card, name: str) -> bool:
    if name in (str(card.index), card.uuid, card.details.serial):
        return True
    address = _address(card.details.pci_bus_id or "")
    return address is not None and _address(name) == address


def _address(text: str) -> tuple[int, ...] | None:
    """Read ``[domain:]bus:device.function``; ``None`` if it is none."""
    parts = text.replace(".", ":").split(":")
    if len(parts) == 3:
        parts = ["0", *parts]
    if len(parts) != 4 or "." not in text:
        return None
    try:
        return tuple(int(part, 16) for part in parts)
    except ValueError:
        return None


def _names(which: str) -> str:
    known = properties.GPU if which == "gpus" else properties.APPS
    option = "--query-gpu" if which == "gpus" else "--query-compute-apps"
    lines = [f'List of valid properties to query for the switch "{option}":', ""]
    for one in known:
        names = " or ".join(f'"{name}"' for name in (one.name, *one.aliases))
        lines.append(f"{names}{'  (not read here)' if one.name in properties.UNREAD else ''}")
    return "\n".join((*lines, ""))
