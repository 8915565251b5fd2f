"""The GPU page as a service of JupyterHub: composed here, and run until it is told to leave."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import signal
from urllib.parse import urlsplit

from tornado import web
from tornado.httpserver import HTTPServer

from genv_jupyter.api.http import MAX_BODY
from genv_jupyter.errors import GpuError, Unavailable
from genv_jupyter.hub import handlers
from genv_jupyter.hub.login import CACHE_SECONDS, Login
from genv_jupyter.hub.upstream import Upstream

log = logging.getLogger("genv_jupyter.hub")
NEEDED = ("JUPYTERHUB_API_TOKEN", "JUPYTERHUB_API_URL", "JUPYTERHUB_SERVICE_PREFIX")


def application(upstream: Upstream, base: str, token: str) -> web.Application:
    """Return the application below ``base``; ``token`` is the service's own at the Hub."""
    return web.Application(
        handlers.routes(base, upstream),
        base_url=base,
        # Logins outlive a restart of the service, and end with its token.
        cookie_secret=hmac.digest(token.encode(), b"genv-jupyter cookies", hashlib.sha256),
        log_function=_note,
        websocket_ping_interval=0,
    )


def run(socket: str, url: str | None) -> None:
    """Serve the page until SIGTERM.

    Parameters
    ----------
    socket
        The daemon's Hub socket.
    url
        Where to listen: ``http://127.0.0.1:10109``; ``None``: where the Hub says.

    Raises
    ------
    Unavailable
        It was not started as a service of a Hub, or the page was not built.
    """
    missing = [name for name in NEEDED if not os.environ.get(name)]
    where = urlsplit(url or os.environ.get("JUPYTERHUB_SERVICE_URL", ""))
    if missing or where.port is None:
        raise Unavailable(
            "This is no service of a JupyterHub: "
            f"{', '.join(missing or ['JUPYTERHUB_SERVICE_URL'])} is not set.",
            hint="docs/admin-page.md says how the Hub starts it, or what to set where it does not.",
        )
    if not (handlers.STATIC / "page.js").exists():
        raise Unavailable("The page was not built.", hint="Run `npm run build:hub`.")
    auth = Login.instance()
    auth.cache_max_age = CACHE_SECONDS
    auth.cookie_options = {"samesite": "Lax", **auth.cookie_options}
    asyncio.run(_serve(socket, where.hostname or "127.0.0.1", where.port, auth))


async def _serve(socket: str, host: str, port: int, auth: Login) -> None:
    upstream = Upstream(socket)
    server = HTTPServer(
        application(upstream, auth.base_url, auth.api_token), xheaders=True, max_body_size=MAX_BODY
    )
    try:
        server.listen(port, host)
    except OSError as error:
        raise Unavailable(f"The page cannot listen on {host}:{port}: {error}.") from None
    log.info("the GPU page listens on %s:%d%s, the daemon is %s", host, port, auth.base_url, socket)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
    server.stop()
    await upstream.close()


def _note(handler: web.RequestHandler) -> None:
    """Write a request down, without its query: a code of the Hub's login may be in it."""
    status = handler.get_status()
    level = logging.INFO if status < 500 else logging.ERROR
    request = handler.request
    log.log(level, "%d %s %s", status, request.method, request.path)


__all__ = ["GpuError", "application", "run"]
