"""Named places at which a test can have the broker die.

``GENV_JUPYTER_FAILPOINT=after_reserve:kill`` kills at the first pass, ``after_reserve:kill:3`` at
the third, ``*:kill:17`` at the seventeenth pass of any. Without the variable a failpoint costs one
comparison.
"""

from __future__ import annotations

import os
import signal

NAMES = (
    "before_reserve",
    "inside_reserve",
    "after_reserve",
    "before_fence",
    "after_fence",
    "after_prepare",
    "inside_confirm",
    "after_confirm",
    "before_release",
    "inside_release",
    "after_release",
    "before_report",
    "inside_report",
    "after_report",
    "after_restart",
    "before_answer",
    "before_join",
    "inside_join",
    "after_join",
    "before_serve",
    "after_serve",
    "inside_leave",
    "after_leave",
    "before_rule_step",
    "inside_rule_step",
    "after_rule_step",
)


class _Armed:
    def __init__(self, spec: str) -> None:
        name, _, rest = spec.partition(":")
        action, _, count = rest.partition(":")
        if action != "kill" or (name != "*" and name not in NAMES):
            raise ValueError(f"GENV_JUPYTER_FAILPOINT={spec!r} names no failpoint")
        self.name = name
        self.left = int(count or 1)


_armed: _Armed | None = None


def arm(spec: str) -> None:
    """Set the failpoint at which this process dies.

    Raises
    ------
    ValueError
        The text names no failpoint.
    """
    global _armed
    _armed = _Armed(spec)


def reach(name: str) -> None:
    """Die here if a test said so."""
    if _armed is None or _armed.name not in ("*", name):
        return
    _armed.left -= 1
    if _armed.left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)


if "GENV_JUPYTER_FAILPOINT" in os.environ:
    arm(os.environ["GENV_JUPYTER_FAILPOINT"])
