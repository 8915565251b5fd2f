"""The rules of quotas: from the configuration, from a function in it, and set by administrators.

What administrators set is kept in the records, and stands in place of what is configured for the
same scope.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from genv_jupyter.broker.quota_settings import QuotaSettings, limits_of
from genv_jupyter.errors import Forbidden, GpuError, Unavailable, UnknownQuota
from genv_jupyter.ledger import quotas as table
from genv_jupyter.ledger.quotas import QuotaRow
from genv_jupyter.model import Principal
from genv_jupyter.quotas import (
    DEFAULT,
    NO_BOUND,
    Bound,
    Bounds,
    Quantity,
    QuotaLimits,
    QuotaRule,
    bound_of,
    check_rule,
    check_scope,
    guaranteed_by,
    read_limits,
)

if TYPE_CHECKING:
    from genv_jupyter.broker.core import Core
    from genv_jupyter.ledger.records import RecordsLedger

log = logging.getLogger(__name__)
HOOK_SECONDS = 60.0


class QuotaRules:
    """Knows every rule. Used under the broker's lock, but for ``set`` and ``unset``."""

    def __init__(self, core: Core, records: RecordsLedger | None) -> None:
        self.core = core
        self.records = records
        self._stored: dict[str, QuotaRow] = {}
        self._rules: dict[str, Bounds] = {}
        self._guaranteed: dict[str, int] = {}
        self._of_hub: Mapping[str, QuotaLimits] = {}
        self._read_from: object = None
        self._revision = 0
        self._hooked: dict[str, tuple[float, Bounds]] = {}
        if records is not None:
            try:
                self._stored = {row.scope: row for row in records.run(table.every)}
            except Unavailable as error:
                core.notices.append(f"Quotas that were set by hand are not known: {error}")

    @property
    def settings(self) -> QuotaSettings:
        """What is configured at this moment."""
        return self.core.config.of(QuotaSettings)

    @property
    def any(self) -> bool:
        """Whether anything may be bounded at all."""
        return bool(self._all()) or self.settings.quota_for is not None

    @property
    def revision(self) -> int:
        """A number that grows with every change of a rule; 0 while nothing may be bounded."""
        return self._revision if self.any else 0

    def bound(self, quantity: Quantity, owner: str) -> Bound:
        """Return what bounds a quantity for an owner."""
        if not self.any:
            return NO_BOUND
        rules, hook = self._all(), self.settings.quota_for
        who = self.core.identities.of(owner)
        said = self._asked(hook, who) if hook is not None else {}
        if quantity in said and quantity not in rules.get(f"user:{who.name}", {}):
            return Bound(said[quantity], "quota_for")
        return bound_of(quantity, who.name, who.groups, rules)

    def guaranteed(self) -> Mapping[str, int]:
        """Return what groups are guaranteed, in hundredths of a percent of a device."""
        self._all()
        return self._guaranteed

    def _all(self) -> Mapping[str, Bounds]:
        if self._read_from is not self.core.config:
            said = {**self._of_hub, **self.settings.rules()}
            said.update({row.scope: _decode(row) for row in self._stored.values()})
            self._guaranteed = {
                scope.removeprefix("group:"): much
                for scope, it in said.items()
                if (much := guaranteed_by(it))
            }
            self._rules = {scope: read_limits(it) for scope, it in said.items()}
            self._read_from = self.core.config
            self._revision += 1
            self._hooked.clear()
        return self._rules

    def _asked(self, hook: object, who: Principal) -> Bounds:
        """Ask the configured function; where it fails, what it said last holds on."""
        at, known = self._hooked.get(who.key, (float("-inf"), {}))
        if time.monotonic() - at < HOOK_SECONDS:
            return known
        try:
            said = hook(who.name, who.groups) if callable(hook) else None
            known = {} if said is None else read_limits(limits_of(f"user:{who.name}", said))
        except Exception:
            log.exception("quota_for failed for %s; what it said before holds on", who.name)
        self._hooked[who.key] = (time.monotonic(), known)
        return known

    def listed(self, principal: Principal) -> list[QuotaRule]:
        """List every rule, for administrators."""
        administers(self.core, principal)
        rules = {
            scope: QuotaRule(scope=scope, limits=limits, source="hub")
            for scope, limits in self._of_hub.items()
        }
        rules |= {
            scope: QuotaRule(scope=scope, limits=limits, source="configuration")
            for scope, limits in self.settings.rules().items()
        }
        for row in self._stored.values():
            since = self.core.stamp(row.at)
            rules[row.scope] = QuotaRule(
                scope=row.scope, limits=_decode(row), source="set", by=row.by, since=since
            )
        return sorted(rules.values(), key=lambda rule: (rule.scope != DEFAULT, rule.scope))

    def learn(self, rules: Mapping[str, QuotaLimits]) -> None:
        """Take in what a JupyterHub says of its groups: the weakest rule for each of them."""
        self._of_hub = rules
        self._read_from = None

    # -- changing, without the lock: it waits for a disk ----------------------------------------

    def set(self, principal: Principal, scope: str, limits: QuotaLimits) -> None:
        """Set a rule, in place of the one there was for the same scope.

        Raises
        ------
        GpuError
            The caller is no administrator, the rule cannot be read, or it cannot be kept.
        """
        administers(self.core, principal)
        check_rule(scope, limits)
        text = msgspec.json.encode(limits).decode()
        row = QuotaRow(scope=scope, limits=text, by=principal.name, at=self.core.clock())
        self._kept().run(lambda it: table.put(it, row))
        self._stored = {**self._stored, scope: row}
        self._read_from = None

    def unset(self, principal: Principal, scope: str) -> None:
        """Forget a rule that was set; what is configured for the scope holds again."""
        administers(self.core, principal)
        check_scope(scope)
        if not self._kept().run(lambda it: table.drop(it, scope)):
            raise UnknownQuota(
                f"No quota was set for {scope}.",
                hint="`jupyter gpu quota list` shows all; those of the configuration stay there.",
            )
        self._stored = {it: row for it, row in self._stored.items() if it != scope}
        self._read_from = None

    def _kept(self) -> RecordsLedger:
        if self.records is None:
            raise Unavailable(
                "No quota can be set: this broker has no records to keep it in.",
                hint="Set it in the configuration; `jupyter gpu doctor` says what is wrong.",
            )
        return self.records


def administers(core: Core, principal: Principal) -> None:
    """Refuse whoever is no administrator; each is that of their own broker."""
    if not principal.admin and core.kind == "host":
        raise Forbidden(
            "Only administrators of GPUs see and set what concerns everybody.",
            hint="`jupyter gpu quota` shows what you may have.",
        )


def _decode(row: QuotaRow) -> QuotaLimits:
    try:
        limits = msgspec.json.decode(row.limits, type=QuotaLimits)
        read_limits(limits)
    except (msgspec.DecodeError, GpuError):
        log.exception("the quota of %s cannot be read, and bounds nothing", row.scope)
        return QuotaLimits()
    return limits
