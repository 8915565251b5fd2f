"""Takes the steps that are due. What is irreversible is written down before it is done.

A process is signalled only as the one that was seen (pid, start ticks), only while it provably
belongs where it is said to belong, and only if it has CUDA itself.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter
from typing import Protocol

from genv_jupyter.broker import failpoints, leaving
from genv_jupyter.broker.core import Core
from genv_jupyter.broker.fence import Lanes
from genv_jupyter.broker.rules import kernels, telling
from genv_jupyter.broker.rules.breaches import Key, Rule, Target
from genv_jupyter.broker.rules.ladder import Order, Rung, Step, climb
from genv_jupyter.broker.rules.quota import Quota
from genv_jupyter.broker.rules.scene import Scene
from genv_jupyter.broker.rules.settings import Rules
from genv_jupyter.errors import Unavailable
from genv_jupyter.isolation import processes
from genv_jupyter.ledger.records import RecordsLedger
from genv_jupyter.ledger.rows import EnvironmentRow, Record

log = logging.getLogger(__name__)

ACTED = "RuleActed"
WOULD = "RuleWouldAct"
WITHHELD = "RuleWithheld"
RECENT = 300.0
"""Seconds for which what an earlier broker did is told by the next: it may have had no time to."""

_SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}


class Evidence(Protocol):
    """What is looked up about a process right before a signal."""

    def uids(self, pid: int) -> tuple[int, ...] | None: ...
    def runs_cuda(self, pid: int) -> bool: ...
    def claims(self, pid: int) -> bool: ...


class Enforcer:
    """The rules of one broker.

    Parameters
    ----------
    lock, lanes
        The broker's.
    records
        Where actions are written before they are taken.
    me
        The uid whose processes a user's broker may act upon.
    proof
        What is looked up about a process.

    Attributes
    ----------
    acted
        How often each step was taken for each rule.
    """

    def __init__(
        self,
        core: Core,
        lock: threading.RLock,
        lanes: Lanes,
        records: RecordsLedger | None = None,
        *,
        me: int | None = None,
        proof: Evidence | None = None,
    ) -> None:
        self.core = core
        self.lock = lock
        self.lanes = lanes
        self.records = records
        self.me = os.getuid() if me is None else me
        self.proof: Evidence = core.powers if proof is None else proof
        self.acted: Counter[tuple[Rule, Step]] = Counter()
        self.scene = Scene(core, self.me, self.quota_of, lambda pid: self.proof.runs_cuda(pid))
        self.board = telling.Teller(core)
        self.rungs: dict[Key, Rung] = {}
        self._seen = float("-inf")

    @property
    def settings(self) -> Rules:
        """What is configured at this moment."""
        return self.core.config.of(Rules)

    def quota_of(self, owner: str) -> Quota | None:
        """Return what an owner may hold, as far as the host says who that is."""
        try:
            most = self.core.quotas.most(owner)
        except Unavailable:  # nobody is ended because a directory service does not answer
            return None
        return None if most is None else Quota(devices=most[0], memory=most[1])

    def round(self) -> None:
        """Judge the last reading, once, and do what is due; called without the lock."""
        for order in self._look():
            try:
                self._take(order)
            except Exception:
                log.exception("rule %s: %s failed", order.breach.key.rule, order.step)

    def recall(self) -> None:
        """Tell owners what a broker that was killed has done and may not have told."""
        if self.records is None:
            return
        try:
            found = self.records.history(since=self.core.clock() - RECENT)
        except Unavailable as error:
            log.warning("what was done by rules lately is not known: %s", error)
            return
        done: list[Record] = []
        for record in found:
            if record.event == ACTED:
                done.append(record)
            elif record.event == WITHHELD:  # what it is about was written down before
                done = [it for it in done if not _same(it, record)]
        with self.lock:
            for record in done:
                self.board.ended(self._row(record.environment, record.owner), record.reason)

    # -- what is due ----------------------------------------------------------------------------

    def _look(self) -> list[Order]:
        with self.lock:
            core = self.core
            if core.last_reading == self._seen:
                return []  # nothing is known that was not known before
            self._seen = core.last_reading
            settings, terms = self.settings, self.settings.terms()
            found = self.scene.breaches(slack=settings.cap_slack, idle_after=settings.idle_after)
            self.rungs, orders = climb(
                self.rungs,
                found,
                terms,
                core.steady(),
                unsure=self.scene.unsure,
                served=self.scene.served,
            )
            self.board.tell(self.rungs, terms)
            return orders

    # -- doing it -------------------------------------------------------------------------------

    def _take(self, order: Order) -> None:
        with self.lock:
            key = order.breach.key
            row = self._row(key.environment or None, key.owner)
        if order.dry:
            self.core.record(WOULD, row, device=key.device or None, reason=_reason(order))
        elif order.target is None:
            self._whole(order, row)
        else:
            self._process(order, order.target, row)

    def _process(self, order: Order, target: Target, row: EnvironmentRow) -> None:
        doubt = self._doubt(order, target, row)
        if doubt is not None:
            log.info("rule %s leaves %s alone: %s", order.breach.key.rule, target, doubt)
            return
        self._write(order, row)
        failpoints.reach("before_rule_step")
        if order.step != "interrupt":  # which must leave CUDA as it is
            leaving.leave_one(self.core, tuple(self.core.usage), target.pid)
        failpoints.reach("inside_rule_step")
        sent = self._interrupt(target, row) if order.step == "interrupt" else None
        if sent is None:
            number, uid = _SIGNALS[order.step], self.scene.uid_of(row)
            sent = self.core.powers.send(target.pid, target.start, number, uid=uid)
        failpoints.reach("after_rule_step")
        if not sent:
            self.core.record(WITHHELD, row, reason=_reason(order))  # it has ended by itself
        elif order.step != "interrupt":
            with self.lock:
                self.board.ended(row, _reason(order))

    def _interrupt(self, target: Target, row: EnvironmentRow) -> bool | None:
        """Have a kernel's server interrupt it; ``None`` where there is none, or for a child."""
        with self.lock:
            return True if target.kernel and kernels.interrupt(self.core, row) else None

    def _doubt(self, order: Order, target: Target, row: EnvironmentRow) -> str | None:
        """Say why a process is not, at this moment, proved to be the one that is meant."""
        pid = target.pid
        if target.spared is not None:
            return target.spared
        if target.start is None or processes.start_of(pid) != target.start:
            return "it has ended"
        if set(self.proof.uids(pid) or ()) != {self.scene.uid_of(row)}:
            return "it is not its owner's alone"
        if not self.proof.runs_cuda(pid):
            return "it has no CUDA: the driver may mean another by that number"
        with self.lock:
            environment = self.core.attribution.environment_of(pid)
            stands = self._stands(order)
        if not stands:
            return "that is over"
        if order.breach.key.rule == "outside":
            with self.lock:
                pretends = self.core.attribution.pretends(pid)
            if environment is not None or (self.proof.claims(pid) and not pretends):
                return "it may belong to an environment"
        elif environment != order.breach.key.environment:
            return "it does not belong to that environment any more"
        return None

    def _whole(self, order: Order, row: EnvironmentRow) -> None:
        """Restart or shut down a kernel, or take back what a process without a server holds."""
        with self.lock:
            if not self._may(order, row):
                return
        self._write(order, row)
        failpoints.reach("before_rule_step")
        with self.lanes.of(row.id), self.lock:
            done = self._done(order, row.id)
            failpoints.reach("after_rule_step")
            if done:
                self.board.ended(row, _reason(order))
            else:  # somebody has reacted in this very moment: what was written was not done
                self.core.record(WITHHELD, row, reason=_reason(order))

    def _done(self, order: Order, environment: str) -> bool:
        """Do that to an environment, if it is still right; say whether it was."""
        row, rule = self.core.books.environments.get(environment), order.breach.key.rule
        if row is None or not self._may(order, row):
            return False
        if order.step == "shutdown":
            kernels.shut_down(self.core, row, idle=rule == "idle")
            return True
        return kernels.give_back(self.core, row, rule)

    def _may(self, order: Order, row: EnvironmentRow) -> bool:
        """Say whether it is still right to act upon an environment."""
        idle = order.breach.key.rule == "idle"
        return kernels.may(self.core, row, idle=idle) and self._stands(order)

    def _stands(self, order: Order) -> bool:
        settings = self.settings
        return self.scene.stands(
            order.breach, order.target, slack=settings.cap_slack, idle_after=settings.idle_after
        )

    # -- writing it down ------------------------------------------------------------------------

    def _write(self, order: Order, row: EnvironmentRow) -> None:
        """Have an action on the disk before it is taken; without records, in the log."""
        key, reason = order.breach.key, _reason(order)
        log.info("rule: %s", reason)
        self.acted[key.rule, order.step] += 1
        memory = None if order.target is None else order.target.memory
        record = Record(
            at=self.core.clock(),
            event=ACTED,
            owner=row.owner,
            environment=row.id or None,
            device=key.device or None,
            memory=memory,
            reason=reason,
        )
        if self.records is None:
            return
        try:
            self.records.append([record])
        except Unavailable as error:
            log.warning("%s", error)
            self.records.enqueue(record)

    def _row(self, environment: str | None, owner: str) -> EnvironmentRow:
        """Return an environment; of one that is gone, or of none, only whose it is."""
        row = None if environment is None else self.core.books.environments.get(environment)
        if row is not None:
            return row
        return self.core.nothing_of(owner)


def _same(one: Record, other: Record) -> bool:
    """Say whether two records are of the same step."""
    return (one.owner, one.environment, one.reason) == (
        other.owner,
        other.environment,
        other.reason,
    )


def _reason(order: Order) -> str:
    """Say in a sentence what is done to whom, and why."""
    what = telling.STEPS[order.step]
    whom = "The kernel" if order.target is None else f"{order.target}"
    whom = whom[0].upper() + whom[1:]
    return f"{whom} {what} ({order.breach.key.rule}): {order.breach.said}"
