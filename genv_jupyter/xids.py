"""NVIDIA's Xid numbers: what a critical error of a GPU means, and whether a program is to blame.

The meanings are those of NVIDIA's catalogue "XID Errors"; that 13, 31, 43, 45, 68 and 109 come from
programs, and leave a healthy GPU, is also how NVIDIA's own device plugin for Kubernetes has it.
"""

from __future__ import annotations

from typing import NamedTuple


class Meaning(NamedTuple):
    """What a number means; ``program``: a program's own mistake; ``reset``: only that cures it."""

    words: str
    program: bool = False
    reset: bool = False


XIDS: dict[int, Meaning] = {
    13: Meaning("graphics engine exception: often an access beyond an array", program=True),
    31: Meaning("memory page fault: the program used an address that is not its own", program=True),
    32: Meaning("corrupted push buffer"),
    38: Meaning("driver firmware error", reset=True),
    43: Meaning("the GPU stopped processing for a program, after an error of it", program=True),
    45: Meaning("work was removed after an earlier error, or since a program ended", program=True),
    48: Meaning("memory error (double bit) that cannot be corrected", reset=True),
    61: Meaning("internal micro-controller breakpoint", reset=True),
    62: Meaning("internal micro-controller halt", reset=True),
    63: Meaning("a bad place in memory was noted to be left out"),
    64: Meaning("a bad place in memory could not be left out", reset=True),
    68: Meaning("video decoder exception", program=True),
    69: Meaning("graphics engine class error", program=True),
    74: Meaning("NVLink error", reset=True),
    79: Meaning("the GPU has fallen off the bus", reset=True),
    92: Meaning("many memory errors that could be corrected"),
    94: Meaning("memory error that cannot be corrected and hit one program only"),
    95: Meaning("memory error that cannot be corrected and may have hit any program", reset=True),
    109: Meaning("a program's work did not yield in time", program=True),
    119: Meaning("the GPU's own processor (GSP) does not answer", reset=True),
    120: Meaning("error of the GPU's own processor (GSP)", reset=True),
    140: Meaning("memory error that was not recovered from", reset=True),
    143: Meaning("the GPU could not be initialised", reset=True),
}
_OTHER = Meaning("see NVIDIA's list of Xid errors")


def meaning(code: int) -> Meaning:
    """Return what a number means, as far as it is known here."""
    return XIDS.get(code, _OTHER)


def sentence(code: int) -> str:
    """Name an error: ``Xid 31 (memory page fault: …)``."""
    return f"Xid {code} ({meaning(code).words})"
