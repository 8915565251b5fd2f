"""Quotas that a JupyterHub keeps with its groups: asked for now and then, and remembered.

A group's property ``genv_jupyter`` says what a rule for that group would: ``{"devices": 2}``. What
the Hub said last stands until it says something else, also when daemon or Hub are started anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from traitlets import TraitError

from genv_jupyter.broker.hub_identity import ASK_SECONDS, HubAccess
from genv_jupyter.broker.kept import Kept
from genv_jupyter.broker.quota_settings import limits_of
from genv_jupyter.quotas import QuotaLimits

log = logging.getLogger("genv_jupyter.broker")

PROPERTY = "genv_jupyter"
PAGE = 200
"""Groups of one answer: the most that a Hub gives by default (``api_page_max_limit``)."""
_PAGED = "application/jupyterhub-pagination+json"
Rules = Mapping[str, QuotaLimits]
"""By scope, such as ``group:lab``."""


class Group(Struct, frozen=True):
    """What the Hub says of a group; its members are told with the tokens of each."""

    name: str
    properties: dict[str, Any] = {}


class Next(Struct, frozen=True):
    """Where the next page begins."""

    offset: int


class Paging(Struct, frozen=True):
    """Whether there is more."""

    next: Next | None = None


class Page(Struct, frozen=True, rename={"paging": "_pagination"}):
    """One answer of ``GET groups``."""

    items: list[Group]
    paging: Paging


class HubGroups:
    """Asks a Hub what its groups may have, and tells whoever keeps the rules.

    Parameters
    ----------
    access
        Returns the present settings.
    tell
        Takes in the rules, when they have changed.
    path
        Where they are kept; ``None``: nowhere.
    fetch
        Asks the Hub for groups from an offset on; ``OSError``: it does not answer.
    """

    def __init__(
        self,
        access: Callable[[], HubAccess],
        tell: Callable[[Rules], Awaitable[None]],
        path: Path | None = None,
        fetch: Callable[[int], Awaitable[Page]] | None = None,
    ) -> None:
        self.access = access
        self.tell = tell
        self._kept = Kept(path, dict[str, Any], "the quotas of the Hub's groups")
        self._fetch = fetch or self._over_http
        self._said: dict[str, Any] | None = None
        self._trouble: str | None = None

    async def watch(self) -> None:
        """Ask for ever, when somebody has said with which token."""
        said = await asyncio.to_thread(self._kept.read)
        if said is not None:
            self._said = said
            await self.tell(_rules(said))
        while True:
            if self.access().token_file:
                await self.ask()
            await asyncio.sleep(float(self.access().cache_seconds))

    async def ask(self) -> None:
        """Ask once; without an answer all stays as it is."""
        try:
            said = await self._all()
        except (OSError, msgspec.MsgspecError) as error:
            if str(error) != self._trouble:
                log.warning("quotas of the Hub's groups are not known anew: %s", error)
            self._trouble = str(error)
            return
        self._trouble = None
        if said != self._said:
            self._said = said
            await self.tell(_rules(said))
            await asyncio.to_thread(self._kept.write, said)

    async def _all(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        offset = 0
        while True:
            page = await self._fetch(offset)
            found |= {
                it.name: it.properties[PROPERTY] for it in page.items if PROPERTY in it.properties
            }
            if page.paging.next is None or page.paging.next.offset <= offset:
                return found
            offset = page.paging.next.offset

    async def _over_http(self, offset: int) -> Page:
        from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

        access = self.access()
        token = (await asyncio.to_thread(Path(access.token_file).read_text)).strip()
        query = urlencode({"limit": PAGE, "offset": offset})
        request = HTTPRequest(
            f"{access.api_url}/groups?{query}",
            headers={"Authorization": f"token {token}", "Accept": _PAGED},
            connect_timeout=ASK_SECONDS,
            request_timeout=ASK_SECONDS,
            follow_redirects=False,  # the token is for the Hub alone
            ca_certs=access.ca_file or None,
        )
        try:
            answer = await AsyncHTTPClient().fetch(request)
        except HTTPClientError as error:
            why = "needs the scopes list:groups and read:groups" if error.code == 403 else ""
            raise OSError(f"{access.api_url} says {error.code} {why}".rstrip()) from None
        except ValueError:  # what is in the file can be in no header
            raise OSError(f"{access.token_file} has no token") from None
        return msgspec.json.decode(answer.body, type=Page)


def _rules(said: Mapping[str, Any]) -> Rules:
    """Read what groups may have; of one that cannot be read nothing is taken."""
    found = {}
    for name, what in said.items():
        try:
            found[f"group:{name}"] = limits_of(f"group:{name}", what)
        except TraitError as error:
            log.warning("the property %s of a group of the Hub is no quota: %s", PROPERTY, error)
    return found
