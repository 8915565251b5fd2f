"""What a driver can tell of a device besides its use: read only when somebody asks for it."""

from __future__ import annotations

from msgspec import Struct


class Details(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The particulars of a GPU; ``None``, for each on its own, is what this card cannot tell.

    Power in milliwatts, clocks in MHz, use, fan and load in percent, temperature in degrees
    Celsius, sizes in bytes. All of it is the whole device's, whoever uses it.
    """

    pci_bus_id: str | None = None
    pci_device_id: int | None = None
    pci_subsystem_id: int | None = None
    minor: int | None = None
    serial: str | None = None
    vbios: str | None = None
    brand: int | None = None
    architecture: int | None = None
    persistence: int | None = None
    display_mode: int | None = None
    display_active: int | None = None
    fan: int | None = None
    temperature: int | None = None
    pstate: int | None = None
    power_management: int | None = None
    power_draw: int | None = None
    power_limit: int | None = None
    power_requested: int | None = None
    power_default: int | None = None
    power_min: int | None = None
    power_max: int | None = None
    memory_utilization: int | None = None
    encoder: int | None = None
    decoder: int | None = None
    ecc: int | None = None
    ecc_pending: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected_ever: int | None = None
    ecc_uncorrected_ever: int | None = None
    mig: int | None = None
    mig_pending: int | None = None
    graphics_clock: int | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    video_clock: int | None = None
    graphics_clock_max: int | None = None
    sm_clock_max: int | None = None
    memory_clock_max: int | None = None
    video_clock_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_generation_device_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    bar1_total: int | None = None
    bar1_used: int | None = None
    bar1_free: int | None = None
