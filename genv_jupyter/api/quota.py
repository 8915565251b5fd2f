"""Quotas and the audit log over HTTP: one's own quota, and for administrators everybody's rules."""

from __future__ import annotations

from genv_jupyter.api.doors import Verbs
from genv_jupyter.quotas import QuotaLimits


class QuotaHandler(Verbs):
    async def get(self) -> None:
        user = self.get_query_argument("user", None)
        asks = user not in (None, self.caller.name)
        await self.answer(lambda: self.host.broker.quota(self.caller, user), asks=asks)


class AuditHandler(Verbs):
    async def get(self) -> None:
        search = self.get_query_argument("search", None)
        limit = self.number("limit", "how many entries at most")
        most = 100 if limit is None else limit
        await self.answer(lambda: self.host.broker.audit(self.caller, search, most))


class QuotaRulesHandler(Verbs):
    async def get(self) -> None:
        await self.answer(lambda: self.host.broker.quotas(self.caller))


class QuotaRuleHandler(Verbs):
    async def put(self, scope: str) -> None:
        limits = self.body(QuotaLimits)
        await self.answer(lambda: self.host.broker.set_quota(self.caller, scope, limits))

    async def delete(self, scope: str) -> None:
        await self.answer(lambda: self.host.broker.set_quota(self.caller, scope, None))
