"""``--query-gpu`` and ``--query-compute-apps``: named properties as comma-separated values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from genv_jupyter.isolation.smi import values as v
from genv_jupyter.isolation.smi.report import MIB, App, Card, Report


class Property(NamedTuple):
    """One column: its name, what else it is called, its unit, and where the value is from."""

    name: str
    value: Callable[[Report, Card, App | None], str | None]
    unit: str = ""
    aliases: tuple[str, ...] = ()
    absent: str = "[N/A]"


def _of_card(
    name: str, value: v.Value, unit: str = "", *aliases: str, absent: str = "[N/A]"
) -> Property:
    return Property(name, lambda report, card, app: value(card), unit, aliases, absent)


def _timestamp(report: Report, card: Card, app: App | None) -> str:
    return f"{report.now:%Y/%m/%d %H:%M:%S}.{report.now.microsecond // 1000:03d}"


def _app_memory(report: Report, card: Card, app: App | None) -> str | None:
    return None if app is None or app.memory is None else str(app.memory // MIB)


_CLOCKS = (("graphics", "gr"), ("sm", "sm"), ("memory", "mem"), ("video", "video"))
_ECC = ("corrected", "uncorrected")

_GPU: tuple[Property, ...] = (
    Property("timestamp", _timestamp),
    Property("driver_version", lambda report, card, app: report.driver),
    Property("count", lambda report, card, app: str(len(report.cards))),
    _of_card("name", v.name, "", "gpu_name"),
    _of_card("serial", v.number("serial"), "", "gpu_serial"),
    _of_card("uuid", v.uuid, "", "gpu_uuid"),
    _of_card("index", v.index),
    _of_card("pci.bus_id", v.number("pci_bus_id"), "", "gpu_bus_id"),
    _of_card("pci.domain", v.bus(0, 4)),
    _of_card("pci.bus", v.bus(1, 2)),
    _of_card("pci.device", v.bus(2, 2)),
    _of_card("pci.device_id", v.hexadecimal("pci_device_id", 8)),
    _of_card("pci.sub_device_id", v.hexadecimal("pci_subsystem_id", 4)),
    _of_card("pcie.link.gen.current", v.number("pcie_generation")),
    _of_card("pcie.link.gen.gpucurrent", v.number("pcie_generation")),
    _of_card("pcie.link.gen.max", v.number("pcie_generation_max")),
    _of_card("pcie.link.gen.gpumax", v.number("pcie_generation_device_max")),
    _of_card("pcie.link.width.current", v.number("pcie_width")),
    _of_card("pcie.link.width.max", v.number("pcie_width_max")),
    _of_card("display_mode", v.switch("display_mode")),
    _of_card("display_active", v.switch("display_active")),
    _of_card("persistence_mode", v.switch("persistence")),
    _of_card("vbios_version", v.number("vbios")),
    _of_card("fan.speed", v.number("fan"), "%"),
    _of_card("pstate", v.pstate),
    _of_card("memory.total", v.memory("total"), "MiB"),
    _of_card("memory.reserved", v.nothing_reserved, "MiB"),
    _of_card("memory.used", v.memory("used"), "MiB"),
    _of_card("memory.free", v.memory("free"), "MiB"),
    _of_card("compute_mode", v.compute_mode),
    _of_card("compute_cap", v.capability),
    _of_card("utilization.gpu", v.utilization, "%"),
    _of_card("utilization.memory", v.number("memory_utilization"), "%"),
    _of_card("utilization.encoder", v.number("encoder"), "%"),
    _of_card("utilization.decoder", v.number("decoder"), "%"),
    _of_card("ecc.mode.current", v.switch("ecc")),
    _of_card("ecc.mode.pending", v.switch("ecc_pending")),
    *(_of_card(f"ecc.errors.{kind}.volatile.total", v.number(f"ecc_{kind}")) for kind in _ECC),
    *(
        _of_card(f"ecc.errors.{kind}.aggregate.total", v.number(f"ecc_{kind}_ever"))
        for kind in _ECC
    ),
    _of_card("temperature.gpu", v.number("temperature")),
    _of_card("power.management", v.switch("power_management")),
    _of_card("power.draw", v.watts("power_draw"), "W"),
    _of_card("power.draw.instant", v.watts("power_draw"), "W"),
    _of_card("power.limit", v.watts("power_requested"), "W"),
    _of_card("enforced.power.limit", v.watts("power_limit"), "W"),
    _of_card("power.default_limit", v.watts("power_default"), "W"),
    _of_card("power.min_limit", v.watts("power_min"), "W"),
    _of_card("power.max_limit", v.watts("power_max"), "W"),
    *(
        _of_card(f"clocks.current.{kind}", v.number(f"{kind}_clock"), "MHz", f"clocks.{short}")
        for kind, short in _CLOCKS
    ),
    *(
        _of_card(f"clocks.max.{kind}", v.number(f"{kind}_clock_max"), "MHz", f"clocks.max.{short}")
        for kind, short in _CLOCKS[:3]
    ),
    _of_card("mig.mode.current", v.switch("mig")),
    _of_card("mig.mode.pending", v.switch("mig_pending")),
)

_REASONS = (
    *("supported", "active", "gpu_idle", "applications_clocks_setting", "sw_power_cap"),
    *("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"),
    "sync_boost",
)
_PLACES = (
    *("device_memory", "dram", "register_file", "l1_cache", "l2_cache", "texture_memory"),
    *("cbu", "sram"),
)
_UNREAD: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    *((name, "", ()) for name in ("addressing_mode", "accounting.mode", "accounting.buffer_size")),
    *((name, "", ()) for name in ("driver_model.current", "driver_model.pending")),
    ("pcie.link.gen.hostmax", "", ()),
    ("inforom.img", "", ("inforom.image",)),
    *((name, "", ()) for name in ("inforom.oem", "inforom.ecc")),
    ("inforom.pwr", "", ("inforom.power",)),
    ("reset_status.reset_required", "", ()),
    ("reset_status.drain_and_reset_recommended", "", ()),
    ("gom.current", "", ("gpu_operation_mode.current",)),
    ("gom.pending", "", ("gpu_operation_mode.pending",)),
    *(
        (f"clocks_event_reasons.{name}", "", (f"clocks_throttle_reasons.{name}",))
        for name in _REASONS
    ),
    ("utilization.jpeg", "%", ()),
    ("utilization.ofa", "%", ()),
    *((f"encoder.stats.{name}", "", ()) for name in ("sessionCount", "averageFps")),
    ("encoder.stats.averageLatency", "", ()),
    *(
        (f"ecc.errors.{kind}.{since}.{place}", "", ())
        for kind in _ECC
        for since in ("volatile", "aggregate")
        for place in _PLACES
    ),
    ("retired_pages.single_bit_ecc.count", "", ("retired_pages.sbe",)),
    ("retired_pages.double_bit.count", "", ("retired_pages.dbe",)),
    ("retired_pages.pending", "", ()),
    ("temperature.gpu.tlimit", "", ()),
    ("power.draw.average", "W", ()),
    *(
        (f"clocks.{group}.{kind}", "MHz", (f"clocks.{group}.{short}",))
        for group in ("applications", "default_applications")
        for kind, short in (("graphics", "gr"), ("memory", "mem"))
    ),
    *((name, "", ()) for name in ("gsp.mode.current", "gsp.mode.default")),
    *((f"protected_memory.{part}", "MiB", ()) for part in ("total", "used", "free")),
    *((name, "", ()) for name in ("fabric.state", "fabric.status")),
)
UNREAD = frozenset(name for name, _, _ in _UNREAD) | {"temperature.memory"}
"""Properties of NVIDIA's that are not read here: their values are N/A, and a note says so."""

GPU: tuple[Property, ...] = (
    *_GPU,
    *(_of_card(name, v.unread, unit, *aliases) for name, unit, aliases in _UNREAD),
    _of_card("temperature.memory", v.unread, absent="N/A"),
)

APPS: tuple[Property, ...] = (
    Property("timestamp", _timestamp),
    _of_card("gpu_name", v.name),
    _of_card("gpu_bus_id", v.number("pci_bus_id")),
    _of_card("gpu_serial", v.number("serial")),
    _of_card("gpu_uuid", v.uuid),
    Property("pid", lambda report, card, app: None if app is None else str(app.pid)),
    Property(
        "process_name", lambda report, card, app: None if app is None else app.name, "", ("name",)
    ),
    Property("used_gpu_memory", _app_memory, "MiB", ("used_memory",)),
)


class UnknownProperty(Exception):
    """There is no property of that name."""


def find(names: Sequence[str], known: tuple[Property, ...]) -> list[Property]:
    """Find properties by name; an empty name is none, as in a list with a comma at its end.

    Raises
    ------
    UnknownProperty
        With the name that is none.
    """
    table = {name: one for one in known for name in (one.name, *one.aliases)}
    found = []
    for name in names:
        if not name:
            continue
        if name not in table:
            raise UnknownProperty(name)
        found.append(table[name])
    return found


def header(columns: Sequence[Property]) -> str:
    """Return the line of names: the properties' own, whatever they were asked by."""
    return ", ".join(f"{one.name} [{one.unit}]" if one.unit else one.name for one in columns)


def gpus(report: Report, columns: Sequence[Property], *, units: bool) -> list[str]:
    """Return one line for each device."""
    return [_line(report, card, None, columns, units) for card in report.cards]


def apps(report: Report, columns: Sequence[Property], *, units: bool) -> list[str]:
    """Return one line for each process that computes."""
    return [
        _line(report, card, app, columns, units)
        for card in report.cards
        for app in card.apps
        if app.kind != "graphics"
    ]


def _line(
    report: Report,
    card: Card,
    app: App | None,
    columns: Sequence[Property],
    units: bool,
) -> str:
    return ", ".join(_cell(one.value(report, card, app), one, units) for one in columns)


def _cell(value: str | None, column: Property, units: bool) -> str:
    if value is None:
        return column.absent
    return f"{value} {column.unit}" if units and column.unit else value
