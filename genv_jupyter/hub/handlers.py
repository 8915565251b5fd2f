"""The page, and the REST API below it: who visits is known, the daemon decides."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import httpx
from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado import web

from genv_jupyter.errors import BrokerDown, GpuError, MethodNotAllowed, Unknown, from_payload
from genv_jupyter.hub.login import Login, Visited, unknown
from genv_jupyter.hub.upstream import Upstream, down

log = logging.getLogger("genv_jupyter.hub")
HERE = Path(__file__).parent
STATIC = HERE / "static"
_TEXT = HERE / "page.html"
_TROUBLE = HERE / "trouble.html"
_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")
_INTERNAL = {
    "code": "internal",
    "message": "The GPU page failed inside.",
    "hint": "Try again; the service's log says more.",
}
_ROUTES_HINT = "The routes are listed in openapi.json."


class Guarded(web.RequestHandler):
    """Headers that hold a page in: nothing of others runs in it, and it runs in nobody's frame."""

    def set_default_headers(self) -> None:
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.policy(),
            "Cross-Origin-Opener-Policy": "noopener-allow-popups",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "same-origin",
            "Server": "genv-jupyter",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.set_header(name, value)

    def policy(self) -> str:
        """Return the content security policy.

        Users' servers have the same origin as this page, so ``'self'`` would be too much: only
        what lies below our own path is ours.
        """
        host = self.request.host
        base = self.settings["base_url"]
        ours = "'self'"
        if _HOST.fullmatch(host):
            ours = f"{self.request.protocol}://{host}{base}"
        return (
            f"default-src 'none'; script-src {ours}static/; style-src {ours}static/; "
            f"img-src {ours}static/ data:; connect-src {ours}genv-jupyter/; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'"
            if ours != "'self'"
            else "default-src 'none'; frame-ancestors 'none'"
        )


class PageHandler(Guarded, Visited):
    """The page itself: one file, the same for everybody."""

    async def get(self) -> None:
        try:
            if await self.visitor() is None:
                self.redirect(self.get_login_url())
                return
        except GpuError as error:
            _say(self, error)
            return
        self.xsrf_token  # noqa: B018 (has the cookie set that the page answers with)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(_TEXT.read_bytes())

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        _say(self, _shaped(status_code, kwargs))


class CallbackHandler(Guarded, HubOAuthCallbackHandler):  # type: ignore[misc]
    """Where the Hub sends those who have logged in."""

    hub_auth_class = Login

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        _say(self, _shaped(status_code, kwargs))


class ApiHandler(Guarded, Visited):
    """Base of the REST API: every error leaves in the shape that all doors have."""

    def initialize(self, upstream: Upstream) -> None:
        self.upstream = upstream

    async def prepare(self) -> None:
        self.check_site()
        model = await self.visitor()
        if model is None:
            raise unknown()
        self.check_page()
        self.model = model

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = _shaped(status_code, kwargs)
        self.set_status(error.status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(error.payload()))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, GpuError):
            super().log_exception(typ, value, tb)

    def below(self) -> str:
        """Return path and query below our own, as they were sent."""
        begin = len(self.settings["base_url"]) + len("genv-jupyter/v1/")
        uri: str = self.request.uri or ""
        return uri[begin:]


class MeHandler(ApiHandler):
    """Who visits, and whether the daemon lets them do what administrators do."""

    async def get(self) -> None:
        admin: bool | None = None  # nobody can tell while the daemon is down
        with contextlib.suppress(BrokerDown):
            found = await self.upstream.call(self.token, "GET", "quotas")
            admin = {200: True, 403: False}.get(found.status)
        hub = self.hub_auth.hub_prefix
        self.set_header("Content-Type", "application/json")
        self.finish(
            json.dumps(
                {
                    "name": self.model["name"],
                    "admin": admin,
                    "hub": f"{hub}home",
                    "logout": f"{hub}logout",
                }
            )
        )


class RelayHandler(ApiHandler):
    """Passes a call on to the daemon, as the visitor."""

    def initialize(self, upstream: Upstream, methods: Sequence[str] = ()) -> None:
        super().initialize(upstream)
        self.methods = methods

    async def _relay(self, *_: str) -> None:
        method = self.request.method or ""
        if method not in self.methods:
            raise MethodNotAllowed("This verb does not exist here.", hint=_ROUTES_HINT)
        answer = await self.upstream.call(self.token, method, self.below(), self.request.body)
        self.set_status(answer.status)
        self.set_header("Content-Type", "application/json")
        self.finish(answer.body)

    get = put = patch = post = delete = _relay


class EventsHandler(ApiHandler):
    """The visitor's stream of events, as lines; with it the daemon's end is closed too."""

    _telling: asyncio.Task[None] | None = None

    async def get(self) -> None:
        self._telling = asyncio.current_task()
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await self._tell()
            except httpx.HTTPError:
                if not self._headers_written:
                    raise down() from None

    async def _tell(self) -> None:
        async with self.upstream.events(self.token, self.below()) as answer:
            if answer.status_code != 200:
                raise from_payload(_decoded(await answer.aread()), answer.status_code)
            self.set_header("Content-Type", "application/jsonl")
            self.set_header("X-Accel-Buffering", "no")
            await self.flush()
            async for piece in answer.aiter_raw():
                self.write(piece)
                await self.flush()

    def on_connection_close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()


class NothingHandler(ApiHandler):
    """Whatever else is asked for."""

    async def prepare(self) -> None:
        raise Unknown("There is nothing here.", hint=_ROUTES_HINT)


class StaticHandler(Guarded, web.StaticFileHandler):
    """Script, style and icon: the same for everybody, and no secret."""

    def set_extra_headers(self, path: str) -> None:
        self.set_header("Cache-Control", "no-cache")  # asked for again, and seldom sent again


def _say(handler: web.RequestHandler, error: GpuError) -> None:
    """Answer with a page that says what is wrong."""
    handler.set_status(error.status)
    handler.set_header("Content-Type", "text/html; charset=utf-8")
    words = {"title": "GPUs cannot be shown", "message": error.message, "hint": error.hint}
    page = Template(_TROUBLE.read_text())
    handler.finish(page.substitute({key: html.escape(text) for key, text in words.items()}))


def _shaped(status: int, kwargs: dict[str, Any]) -> GpuError:
    """Return an error of any kind as one of ours."""
    error = kwargs.get("exc_info", (None, None))[1]
    if isinstance(error, GpuError):
        return error
    if status == 404:
        return Unknown("There is nothing here.", hint=_ROUTES_HINT)
    if status == 405:
        return MethodNotAllowed("This verb does not exist here.", hint=_ROUTES_HINT)
    if isinstance(error, web.HTTPError) and status < 500:
        said = {"code": "bad_request", "message": str(error.log_message or error.reason)}
        return from_payload(said | {"hint": "Load the page again."}, status)
    return from_payload(_INTERNAL, 500)


def _decoded(body: bytes) -> dict[str, Any]:
    """Read a refusal of the daemon."""
    try:
        found = json.loads(body)
    except ValueError:
        return dict(_INTERNAL)
    return found if isinstance(found, dict) else dict(_INTERNAL)


_ID = r"[^/]+"
_CALLS = (
    ("health|leftovers|audit|quota|quotas|devices|environments|queue|notices", "GET"),
    (r"usage|usage/report|openapi\.json", "GET"),
    (rf"devices/{_ID}", "PATCH"),
    (rf"environments/{_ID}", "GET PUT PATCH DELETE"),
    (rf"environments/{_ID}/(?:restart|ask)|notices/{_ID}/answer|placements", "POST"),
    (rf"(?:queue|processes|notices)/{_ID}", "DELETE"),
    (rf"quotas/{_ID}", "PUT DELETE"),
)
"""What a browser may ask for. What servers and processes tell of themselves is not among it: it is
believed by where it comes from, and that would be this service."""


def routes(base: str, upstream: Upstream) -> list[Any]:
    """Return the routes below ``base``, which ends with a slash."""
    ours = {"upstream": upstream}
    below = re.escape(f"{base}genv-jupyter/v1/")
    top = re.escape(base)
    return [
        (rf"{top}?", PageHandler),
        (rf"{top}oauth_callback", CallbackHandler),
        (rf"{top}static/(page\.js|page\.css|icon\.svg)", StaticHandler, {"path": str(STATIC)}),
        (rf"{below}me", MeHandler, ours),
        (rf"{below}events", EventsHandler, ours),
        *(
            (rf"{below}(?:{path})", RelayHandler, {**ours, "methods": methods.split()})
            for path, methods in _CALLS
        ),
        (r".*", NothingHandler, ours),
    ]
