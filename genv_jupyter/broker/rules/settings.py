"""What can be configured of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traitlets import Enum, List
from traitlets.config import Configurable

from genv_jupyter.broker.rules.breaches import RULES, Rule
from genv_jupyter.broker.rules.ladder import Action, Terms
from genv_jupyter.broker.traits import Seconds, Size
from genv_jupyter.notices import RuleInForce
from genv_jupyter.units import format_duration, format_memory

MODES = ("off", "warn", "act")

THEN: Mapping[Action, str] = {
    "processes": "the process is interrupted, then ended",
    "restart": "what is held is given back, and the kernel is restarted where CUDA holds it",
    "shutdown": "the kernel is shut down",
}
"""What each action is, for people."""


def _mode(what: str) -> Any:
    return Enum(
        MODES, "warn", help=f"{what} 'off': nothing; 'warn': the owner is told; 'act': then ended."
    ).tag(config=True)


def _grace(seconds: float, rule: str) -> Any:
    return Seconds(
        seconds,
        help=f"`{rule} = 'act'`: how long after the owner was told something is done: seconds, 5m.",
    )


class Rules(Configurable):
    """What is done about who uses more than was granted, or holds what is not used.

    Never touched by any rule are root and the system's users, graphics, MPS and DCGM; a user's
    broker acts on that user's processes alone. Processes are interrupted (as by Ctrl-C), then
    terminated, then killed; kernels are restarted or shut down by their Jupyter server.
    """

    cap = _mode("More memory is used than was granted: all processes of an environment together.")
    cap_grace = _grace(60.0, "cap")
    cap_slack = Size(
        256 * 2**20,
        help="What may be used over the cap before that is a breach: bytes, 256MiB. CUDA's own use "
        "varies.",
    )
    foreign_device = _mode("A device is used that was not granted to the environment.")
    foreign_device_grace = _grace(60.0, "foreign_device")
    outside = _mode("A process of this user that belongs to no environment uses a device.")
    outside_grace = _grace(300.0, "outside")
    idle = _mode("Nothing is executed, and the use of the devices is known to be zero.")
    idle_after = Seconds(1800.0, help="From when on it is too long: seconds, or 30m.")
    idle_grace = _grace(300.0, "idle")
    idle_action = Enum(
        ["restart", "shutdown"],
        "restart",
        help="`idle = 'act'`: what becomes of an idle kernel. 'restart': its devices are given "
        "back, and it is restarted where CUDA holds them (releasing alone would free nothing); "
        "'shutdown'.",
    ).tag(config=True)
    lease = _mode("The time is over for which devices were granted.")
    lease_grace = _grace(60.0, "lease")
    lease_action = Enum(
        ["restart", "shutdown"],
        "restart",
        help="`lease = 'act'`: what becomes of a kernel whose lease is over; as `idle_action`.",
    ).tag(config=True)
    quota = _mode("More is held than a quota allows that was lowered since.")
    quota_grace = _grace(300.0, "quota")
    pause = Seconds(
        10.0,
        help="How long a process has to end after it was interrupted, and again after it was "
        "terminated, before it is killed: seconds.",
    )
    patience = Seconds(
        5.0, help="How long something must last before it is a breach and is told: seconds."
    )
    dry_run = List(
        Enum(RULES),
        help="Rules of mode 'act' that only record what they would do: ['cap', 'idle'].",
    ).tag(config=True)

    def in_force(self) -> tuple[RuleInForce, ...]:
        """Return how each rule stands, in words."""
        return tuple(
            RuleInForce(
                rule=rule, mode=term.mode, dry_run=term.dry, summary=_summary(rule, term, self)
            )
            for rule, term in self.terms().items()
        )

    def terms(self) -> dict[Rule, Terms]:
        """Return how each rule stands."""
        idle: Action = "shutdown" if self.idle_action == "shutdown" else "restart"
        lease: Action = "shutdown" if self.lease_action == "shutdown" else "restart"
        actions: dict[Rule, Action] = {"idle": idle, "lease": lease, "quota": "restart"}
        return {
            rule: Terms(
                mode=getattr(self, rule),
                grace=getattr(self, f"{rule}_grace"),
                pause=self.pause,
                patience=0.0 if rule in ("idle", "lease") else self.patience,
                dry=rule in self.dry_run,
                action=actions.get(rule, "processes"),
            )
            for rule in RULES
        }


def _summary(rule: Rule, term: Terms, settings: Rules) -> str:
    """Say in a sentence what a rule does."""
    if term.mode == "off":
        return "off"
    when = {
        "cap": f"more than {format_memory(settings.cap_slack)} over what was granted",
        "foreign_device": "use of a device that was not granted",
        "outside": "use by a process of yours that is in no environment",
        "idle": f"nothing runs and nothing is used for {format_duration(settings.idle_after)}",
        "lease": "the time is over for which something was granted",
        "quota": "more is held than a quota allows",
    }[rule]
    told = f"{when}: its owner is told"
    if term.mode == "warn":
        return told
    then = f"{told}; after {format_duration(term.grace)} {THEN[term.action]}"
    return f"{then} (dry run: only recorded)" if term.dry else then
