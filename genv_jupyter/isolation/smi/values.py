"""How nvidia-smi writes one value of a card; ``None`` is what the card cannot tell."""

from __future__ import annotations

from collections.abc import Callable

from genv_jupyter.isolation.smi.report import MIB, Card

Value = Callable[[Card], str | None]

_MODES = {
    "default": "Default",
    "exclusive_thread": "Exclusive_Thread",
    "prohibited": "Prohibited",
    "exclusive_process": "Exclusive_Process",
}
_BRANDS = {
    **{1: "Quadro", 2: "Tesla", 3: "NVS", 4: "Grid", 5: "GeForce", 6: "Titan"},
    **{12: "Quadro RTX", 13: "NVIDIA RTX", 14: "NVIDIA", 15: "GeForce RTX", 16: "Titan RTX"},
}
_ARCHITECTURES = {
    **{2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing"},
    **{7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell"},
}


def number(field: str) -> Value:
    """Return the value of a field of the details, as it stands."""

    def value(card: Card) -> str | None:
        found = getattr(card.details, field)
        return None if found is None else str(found)

    return value


def mib(field: str) -> Value:
    """Return a size in the details, in MiB."""

    def value(card: Card) -> str | None:
        found = getattr(card.details, field)
        return None if found is None else str(found // MIB)

    return value


def watts(field: str) -> Value:
    """Return a power in the details, in watts."""

    def value(card: Card) -> str | None:
        found = getattr(card.details, field)
        return None if found is None else f"{found / 1000:.2f}"

    return value


def switch(field: str, words: tuple[str, str] = ("Disabled", "Enabled")) -> Value:
    """Return whether something is on."""

    def value(card: Card) -> str | None:
        found = getattr(card.details, field)
        return None if found is None else words[bool(found)]

    return value


def hexadecimal(field: str, digits: int, prefix: str = "0x") -> Value:
    """Return a number of the details in hexadecimal digits."""

    def value(card: Card) -> str | None:
        found = getattr(card.details, field)
        return None if found is None else f"{prefix}{found:0{digits}X}"

    return value


def bus(part: int, digits: int, prefix: str = "0x") -> Value:
    """Return a part of the PCI address: domain 0, bus 1, device 2."""

    def value(card: Card) -> str | None:
        address = card.details.pci_bus_id
        parts = (address or "").split(".")[0].split(":")
        return prefix + parts[part][-digits:] if len(parts) == 3 else None

    return value


def memory(part: str) -> Value:
    """Return ``total``, ``used`` or ``free`` of the environment's memory, in MiB."""

    def value(card: Card) -> str | None:
        found = getattr(card, part)
        return None if found is None else str(found // MIB)

    return value


def nothing_reserved(card: Card) -> str | None:
    """Return what of the cap the driver keeps for itself: nothing, it is not in the cap."""
    return None if card.total is None else "0"


def name(card: Card) -> str | None:
    """Return the product's name."""
    return card.name


def uuid(card: Card) -> str | None:
    """Return the UUID."""
    return card.uuid


def index(card: Card) -> str | None:
    """Return the number of the device in its environment."""
    return str(card.index)


def utilization(card: Card) -> str | None:
    """Return the load of the device, by whomever."""
    return None if card.utilization is None else str(card.utilization)


def compute_mode(card: Card) -> str | None:
    """Return the compute mode."""
    return _MODES.get(card.compute_mode or "")


def capability(card: Card) -> str | None:
    """Return the CUDA compute capability."""
    return None if card.capability is None else "{}.{}".format(*card.capability)


def pstate(card: Card) -> str | None:
    """Return the performance state."""
    found = card.details.pstate
    return None if found is None or found > 15 else f"P{found}"


def brand(card: Card) -> str | None:
    """Return the brand."""
    return None if card.details.brand is None else _BRANDS.get(card.details.brand, "Unknown")


def architecture(card: Card) -> str | None:
    """Return the name of the architecture."""
    found = card.details.architecture
    return None if found is None else _ARCHITECTURES.get(found, "Unknown")


def lanes(field: str) -> Value:
    """Return the width of the PCI link."""

    def value(card: Card) -> str | None:
        found = getattr(card.details, field)
        return None if found is None else f"{found}x"

    return value


def unit(value: Value, suffix: str) -> Value:
    """Return a value with its unit."""

    def with_unit(card: Card) -> str | None:
        found = value(card)
        return None if found is None else f"{found} {suffix}"

    return with_unit


def unread(card: Card) -> str | None:
    """Return nothing: this is not read here."""
    return None
