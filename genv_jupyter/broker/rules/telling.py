"""What owners read of the rules: what is broken, what will be done about it when, what was done.

Used with the broker's lock held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genv_jupyter.broker.core import Core
from genv_jupyter.broker.rules.breaches import Key, Rule
from genv_jupyter.broker.rules.ladder import Rung, Step, Terms, next_at
from genv_jupyter.broker.rules.settings import THEN
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.notices import NoticeAction, NoticeLevel

STEPS: Mapping[Step, str] = {
    "interrupt": "is interrupted",
    "terminate": "is terminated",
    "kill": "is killed",
    "restart": "is restarted, and what it held is given back",
    "shutdown": "is shut down",
    "release": "has to give back what it holds",
}
BUTTONS: Mapping[Rule, tuple[NoticeAction, ...]] = {
    "cap": ("restart", "release"),
    "foreign_device": ("restart",),
    "outside": (),
    "idle": ("keep", "release"),
    "lease": ("extend", "release"),
    "quota": ("release",),
}
DRY = "(A dry run: nothing is done.)"
ENDED_HINT = "`jupyter gpu doctor` lists the rules; whoever runs the broker can change them."


class Teller:
    """Keeps the notices of the rules as they should be."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._told: dict[tuple[str, Rule], EnvironmentRow] = {}

    def tell(self, rungs: Mapping[Key, Rung], terms: Mapping[Rule, Terms]) -> None:
        """Put up what is broken, and take down what is over."""
        groups: dict[tuple[str, Rule], list[Rung]] = {}
        for key, rung in rungs.items():
            if rung.told and key.rule != "lease":  # that is announced before it is over
                groups.setdefault((key.environment or key.owner, key.rule), []).append(rung)
        for whom in self._told.keys() - groups.keys():
            self.core.board.withdraw(self._told.pop(whom), whom[1])
        for (whose, rule), group in groups.items():
            environment = group[0].breach.key.environment
            row = self.core.books.environments.get(environment)
            if row is None and not environment:
                row = self.core.nothing_of(whose)
            if row is not None:
                self._told[whose, rule] = row
                self._put_up(row, rule, group, terms[rule])

    def ended(self, row: EnvironmentRow, sentence: str | None) -> None:
        """Tell what was done."""
        self.core.board.tell(row, "ended", sentence or "", level="error", hint=ENDED_HINT)

    def _put_up(self, row: EnvironmentRow, rule: Rule, group: Sequence[Rung], term: Terms) -> None:
        times = [at for it in group if (at := next_at(it, term)) is not None]
        level: NoticeLevel = "info" if rule == "idle" else "warning"
        until = None
        if times and not term.dry:
            until = self.core.clock() + min(times) - self.core.steady()
            level = "error"
        begun = any(it.taken for it in group)
        self.core.board.tell(
            row,
            rule,
            " ".join([*(it.breach.said for it in group), *_outlook(group, term)]),
            level=level,
            hint=group[0].breach.hint,
            until=until,
            actions=BUTTONS[rule] if row.kind == "kernel" else _without_restart(BUTTONS[rule]),
            topic=f"{sorted(it.breach.key.device for it in group)} {begun}",
        )


def _outlook(group: Sequence[Rung], term: Terms) -> list[str]:
    """Say what is going to be done about breaches, where anything is."""
    if term.mode != "act":
        return []
    said = []
    targets = [it for rung in group for it in rung.breach.targets]
    if group[0].breach.whole:
        said = [f"Otherwise {THEN[term.action]}."]
    elif not targets:
        said = ["No process that may be ended would bring it under: nothing is ended."]
    else:
        more = f" (and {len(targets) - 1} more)" if len(targets) > 1 else ""
        said = [f"Otherwise {targets[0]}{more} is interrupted, then ended."]
    return [*said, DRY] if term.dry else said


def _without_restart(actions: tuple[NoticeAction, ...]) -> tuple[NoticeAction, ...]:
    return tuple(it for it in actions if it != "restart")
