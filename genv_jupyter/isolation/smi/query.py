"""``nvidia-smi -q``: everything about each device, as text or as XML."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from genv_jupyter.isolation.smi.fields import FIELDS, Field
from genv_jupyter.isolation.smi.report import MIB, App, Card, Report

_COLUMN = 42
_TABS = "\t" * 8
DISPLAYS: dict[str, tuple[str, ...]] = {
    "MEMORY": (
        "FB Memory Usage",
        "BAR1 Memory Usage",
        "Conf Compute Protected Memory Usage",
    ),
    "UTILIZATION": ("Utilization",),
    "ECC": ("ECC Mode", "ECC Errors"),
    "TEMPERATURE": ("Temperature",),
    "POWER": ("GPU Power Readings", "Module Power Readings"),
    "CLOCK": (
        *("Clocks", "Applications Clocks", "Default Applications Clocks", "Deferred Clocks"),
        *("Max Clocks", "Max Customer Boost Clocks", "Clock Policy"),
    ),
    "COMPUTE": ("Compute Mode",),
    "PERFORMANCE": ("Performance State", "Clocks Event Reasons", "Sparse Operation Mode"),
    "PIDS": ("Processes",),
}
"""What ``-d`` chooses: the parts by their labels."""

UNREAD_DISPLAYS = frozenset(
    {
        *("SUPPORTED_CLOCKS", "PAGE_RETIREMENT", "ACCOUNTING", "ENCODER_STATS", "VOLTAGE"),
        *("SUPPORTED_GPU_TARGET_TEMP", "FBC_STATS", "ROW_REMAPPER", "RESET_STATUS"),
    }
)
"""Those of NVIDIA's that are not read here."""


def text(report: Report, attached: int, chosen: frozenset[str] | None) -> str:
    """Return it as text; ``chosen`` are the labels of the parts to show, ``None`` shows all."""
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [
        f"{'Timestamp':<{_COLUMN}}: {report.moment}",
        f"{'Driver Version':<{_COLUMN}}: {report.driver_text}",
        f"{'CUDA Version':<{_COLUMN}}: {report.cuda_text}",
        "",
        f"{'Attached GPUs':<{_COLUMN}}: {attached}",
    ]
    for card in report.cards:
        lines.append(f"GPU {_place(card)}")
        for field in FIELDS:
            if chosen is None or field.label in chosen:
                lines += _lines(field, card, 1)
        if chosen is None or "Processes" in chosen:
            lines += _processes(card)
        lines.append("")
    return "\n".join(lines) + "\n"


def xml(report: Report, attached: int) -> str:
    """Return it as XML."""
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
        _element(1, "timestamp", report.moment),
        _element(1, "driver_version", report.driver_text),
        _element(1, "cuda_version", report.cuda_text),
        _element(1, "attached_gpus", str(attached)),
    ]
    for card in report.cards:
        lines.append(f"\t<gpu id={quoteattr(_place(card))}>")
        for field in FIELDS:
            lines += _elements(field, card, 2)
        lines += ["\t\t<processes>", *_process_elements(card), "\t\t</processes>"]
        lines += [_element(2, "accounted_processes", "N/A"), "\t</gpu>", ""]
    return "\n".join((*lines, "</nvidia_smi_log>", ""))


def _place(card: Card) -> str:
    return card.details.pci_bus_id or card.uuid


def _lines(field: Field, card: Card, depth: int) -> Iterator[str]:
    if field.label is None:
        return
    indented = f"{'    ' * depth}{field.label}"
    if any(one.label for one in field.below):
        yield indented
        for one in field.below:
            yield from _lines(one, card, depth + 1)
    else:
        yield f"{indented:<{_COLUMN}}: {_value(field, card)}"


def _elements(field: Field, card: Card, depth: int) -> Iterator[str]:
    if field.tag is None:
        return
    if field.below:
        yield f"{_TABS[:depth]}<{field.tag}>"
        for one in field.below:
            yield from _elements(one, card, depth + 1)
        yield f"{_TABS[:depth]}</{field.tag}>"
    elif field.tag == "mig_devices":
        yield f"{_TABS[:depth]}<mig_devices>"
        yield f"{_TABS[: depth + 1]}None"
        yield f"{_TABS[:depth]}</mig_devices>"
    else:
        yield _element(depth, field.tag, _bare(field.tag, _value(field, card)))


def _bare(tag: str, value: str) -> str:
    """Return the parts of a PCI address as the XML has them, without the prefix."""
    return value.removeprefix("0x") if tag.startswith("pci_") else value


def _value(field: Field, card: Card) -> str:
    found = None if field.value is None else field.value(card)
    return "N/A" if found is None else found


def _element(depth: int, tag: str, value: str) -> str:
    return f"{_TABS[:depth]}<{tag}>{escape(value)}</{tag}>"


def _processes(card: Card) -> Iterator[str]:
    if not card.apps:
        yield f"{'    Processes':<{_COLUMN}}: None"
        return
    yield "    Processes"
    for app in card.apps:
        for depth, label, value in _process(card, app):
            yield f"{'    ' * depth + label:<{_COLUMN}}: {value}"


def _process(card: Card, app: App) -> list[tuple[int, str, str]]:
    gpu, compute = ("N/A", "N/A") if card.instance is None else map(str, card.instance)
    return [
        (2, "GPU instance ID", gpu),
        (2, "Compute instance ID", compute),
        (2, "Process ID", str(app.pid)),
        (3, "Type", app.letters),
        (3, "Name", app.name),
        (3, "Used GPU Memory", "N/A" if app.memory is None else f"{app.memory // MIB} MiB"),
    ]


_PROCESS_TAGS = (
    *("gpu_instance_id", "compute_instance_id", "pid", "type", "process_name", "used_memory"),
)


def _process_elements(card: Card) -> Iterator[str]:
    for app in card.apps:
        yield "\t\t\t<process_info>"
        for tag, (_, _, value) in zip(_PROCESS_TAGS, _process(card, app), strict=True):
            yield _element(4, tag, value)
        yield "\t\t\t</process_info>"
