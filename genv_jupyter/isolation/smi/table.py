"""``nvidia-smi`` without arguments, and ``-L``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from genv_jupyter.details import Details
from genv_jupyter.isolation.smi.report import MIB, App, Card, Report

_WIDTH = 87
_EDGE = f"+{'-' * _WIDTH}+"
_ROW_EDGE = f"+{'-' * 41}+{'-' * 22}+{'-' * 22}+"
_HEAD = (
    f"|{'-' * 41}+{'-' * 22}+{'-' * 22}+",
    "| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |",
    "|                                         |                      |               MIG M. |",
    f"|{'=' * 41}+{'=' * 22}+{'=' * 22}|",
)
_PROCESSES = (
    " " * (_WIDTH + 2),
    _EDGE,
    f"| {'Processes:':<{_WIDTH - 1}}|",
    "|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |",
    "|        ID   ID                                                             Usage      |",
    f"|{'=' * _WIDTH}|",
)
_SHORT_MODES = {
    **{"default": "Default", "exclusive_thread": "E. Thread"},
    **{"prohibited": "Prohibited", "exclusive_process": "E. Process"},
}
_PERSISTENCE = {None: "N/A  ", 0: "Off ", 1: "On  "}


def summary(report: Report) -> str:
    """Return the table of devices and processes."""
    lines = [f"{report.moment}       ", _EDGE, _versions(report), *_HEAD]
    for card in report.cards:
        lines += [*_card(card), _ROW_EDGE]
    lines += [*_PROCESSES, *_processes(report), _EDGE, ""]
    return "\n".join(lines)


def listing(report: Report) -> str:
    """Return one line for each device; MIG instances stand under a line of their GPU."""
    lines: list[str] = []
    parent: str | None = None
    number = -1
    for card in report.cards:
        if card.parent is None:
            number += 1
            lines.append(f"GPU {number}: {card.name or 'N/A'} (UUID: {card.uuid})")
            continue
        gpu, _, profile = (card.name or "N/A").partition(" MIG ")
        if card.parent != parent:
            parent, place = card.parent, 0
            number += 1
            lines.append(f"GPU {number}: {gpu} (UUID: {parent})")
        lines.append(f"  MIG {profile or 'N/A':<11} Device {place:>2}: (UUID: {card.uuid})")
        place += 1
    return "".join(f"{line}\n" for line in lines)


def _versions(report: Report) -> str:
    driver = report.driver_text
    left = f"| NVIDIA-SMI {driver:<21}  Driver Version: {driver:<12} CUDA Version: "
    return f"{left}{report.cuda_text:<{_WIDTH + 1 - len(left)}}|"


def _card(card: Card) -> Iterator[str]:
    more = card.details
    name = _cut(card.name or "N/A")
    persistence = _PERSISTENCE.get(more.persistence, "N/A  ")
    yield (
        f"|{card.index:>4}  {name:<27}{persistence:>8}"
        f"| {more.pci_bus_id or 'N/A':<16} {_switch(more.display_active):>3} "
        f"| {_ecc(more):>20} |"
    )
    perf = "  N/A " if more.pstate is None else f"{f'P{more.pstate}':>6}"
    load = _percent(card.utilization)
    yield (
        f"|{_percent(more.fan):>4}{_celsius(more.temperature):>6}{perf}"
        f"{_watts(more.power_draw):>17} /{_watts(more.power_limit):>5} "
        f"|{_mib(card.used):>10} /{_mib(card.total):>9} "
        f"|{load:>8}{_SHORT_MODES.get(card.compute_mode or '', 'N/A'):>13} |"
    )
    mig = "Enabled" if card.parent else _switch(more.mig, ("Disabled", "Enabled"))
    yield f"|{' ' * 41}|{' ' * 22}|{mig:>21} |"


def _processes(report: Report) -> Iterator[str]:
    found = False
    for card in report.cards:
        gi, ci = ("N/A", "N/A") if card.instance is None else map(str, card.instance)
        for app in sorted(card.apps, key=lambda app: app.pid):
            found = True
            yield (
                f"|{card.index:>5}{gi:>6}{ci:>5}{app.pid:>10}{app.letters:>7}   "
                f"{_tail(app):<38}{_mib(app.memory):>12} |"
            )
    if not found:
        yield f"|  {'No running processes found':<{_WIDTH - 2}}|"


def _cut(name: str) -> str:
    return name if len(name) <= 27 else f"{name[:24]}..."


def _tail(app: App) -> str:
    """Return the end of a long name: it tells more than its beginning."""
    return app.name if len(app.name) <= 38 else f"...{app.name[-35:]}"


def _ecc(more: Details) -> str:
    if not more.ecc:
        return "N/A" if more.ecc is None else "Off"
    return "N/A" if more.ecc_uncorrected is None else str(more.ecc_uncorrected)


def _switch(value: int | None, words: tuple[str, str] = ("Off", "On")) -> str:
    return "N/A" if value is None else words[bool(value)]


def _percent(value: int | None) -> str:
    return "N/A" if value is None else f"{value}%"


def _celsius(value: int | None) -> str:
    return "N/A" if value is None else f"{value}C"


def _watts(value: int | None) -> str:
    return "N/A" if value is None else f"{value // 1000}W"


def _mib(value: int | None) -> str:
    return "N/A" if value is None else f"{value // MIB}MiB"


def version(report: Report) -> str:
    """Return the answer to ``--version``, which NVIDIA's has since 545."""
    short = re.sub(r"^(\d+\.\d+).*", r"\1", report.driver_text)
    pairs = (
        ("NVIDIA-SMI version", report.driver_text),
        ("NVML version", short),
        ("DRIVER version", report.driver_text),
        ("CUDA Version", report.cuda_text),
    )
    return "".join(f"{name:<20}: {value}\n" for name, value in pairs)
