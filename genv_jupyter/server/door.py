"""The door of the Jupyter server: who is let in, how errors leave, how a call is passed on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from genv_jupyter.api.connection import refusal
from genv_jupyter.api.http import MAX_BODY
from genv_jupyter.errors import (
    BadRequest,
    Forbidden,
    GpuError,
    MethodNotAllowed,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unknown,
)
from genv_jupyter.server.actors import clicks
from genv_jupyter.server.kernels import ServerHost

Verb = TypeVar("Verb", bound=Callable[..., Any])

RESOURCE = "gpu"
ROUTES_HINT = "The routes are listed in openapi.json."


class ErrorShape(JupyterHandler):
    """Every error leaves in our shape, those of login, XSRF, JSON and routing included."""

    auth_resource = RESOURCE
    _track_activity = False  # a sidebar that looks on must not keep an idle server alive

    def initialize(self, host: ServerHost) -> None:
        self.host = host

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    def get_login_url(self) -> str:
        """An API answers 401 instead of leading to a page."""
        raise Unauthenticated("You are not logged in to this server.", hint="Log in and try again.")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if not isinstance(error, GpuError):
            error = self._translated(error, status_code)
        self.set_status(error.status)
        self.set_header("Content-Type", "application/json")
        # Not APIHandler's finish: a refused request is no activity.
        web.RequestHandler.finish(self, json.dumps(error.payload()))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, GpuError):
            super().log_exception(typ, value, tb)

    def _translated(self, error: object, status: int) -> GpuError:
        """Put what jupyter_server and tornado say into our words."""
        said = str(getattr(error, "log_message", None) or "")
        if status in (401, 403) and self.__dict__.get("_jupyter_current_user") is None:
            return Unauthenticated(
                "You are not logged in to this server.", hint="Log in and try again."
            )
        if status == 403:
            return Forbidden(said or "You may not do this.", hint="Ask the owner of this server.")
        if status == 404:
            return Unknown("There is nothing here.", hint=ROUTES_HINT)
        if status == 405:
            return MethodNotAllowed("This verb does not exist here.", hint=ROUTES_HINT)
        if status == 413:
            return TooLarge("The request is too large.")
        if 400 <= status < 500:
            return BadRequest(said or "The request cannot be read.")
        return GpuError("The GPU extension failed inside; the server's log says more.")


def allowed(action: str) -> Callable[[Verb], Verb]:
    """Let in only who is logged in and may do this to the resource ``gpu``."""

    def decorate(verb: Verb) -> Verb:
        return cast(Verb, web.authenticated(authorized(action, RESOURCE)(verb)))

    return decorate


def _locked_out(error: GpuError) -> Unavailable:
    """Say that it is this server whom the broker does not know, and not whoever is logged in."""
    return Unavailable(
        f"The GPU broker of this host does not let this server in. {error.message}",
        hint=error.hint,
    )


class Door(ErrorShape, APIHandler):
    """Base of the verbs."""

    async def relay(
        self, method: str, path: str, body: bytes | None = None, **query: str | None
    ) -> None:
        """Send a request to the broker and pass its answer on."""
        self.answer(*await self.ask(method, path, body, **query))

    async def ask(
        self, method: str, path: str, body: bytes | None = None, **query: str | None
    ) -> tuple[int, bytes]:
        """Send a request to the broker, as the owner of this server."""
        if body is not None and len(body) > MAX_BODY:
            raise TooLarge("The request is too large.")
        self.host.start()
        actor = None if method == "GET" else clicks(self)
        call = self.host.reports.link.call(method, path, body, query, actor)
        try:
            status, answer = await asyncio.wrap_future(call)
        except Unauthenticated as error:
            self.host.metrics.refused(error.code)
            raise _locked_out(error) from None
        except GpuError as error:
            self.host.metrics.refused(error.code)
            raise
        self.host.metrics.answered(status, answer)
        if status == Unauthenticated.status:
            raise _locked_out(refusal(answer, status))
        return status, answer

    def answer(self, status: int, body: bytes) -> None:
        """Write an answer of the broker."""
        self.set_status(status)
        self.finish(body)

    def argument(self, name: str) -> str | None:
        """Read a query argument."""
        return self.get_query_argument(name, None)
