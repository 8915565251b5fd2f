"""Who visits: JupyterHub's login, and that a request is really the page's own."""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuth, HubOAuthenticated, UserNotAllowed
from tornado import web

from genv_jupyter.errors import Forbidden, GpuError, Unauthenticated, Unavailable

CACHE_SECONDS = 30
"""For which the Hub is not asked again who somebody is. What they may is the daemon's to say."""


class Login(HubOAuth):  # type: ignore[misc]
    """The Hub's login, with tokens in headers and in our own cookie alone, never in addresses."""

    def _get_token_url(self, handler: web.RequestHandler) -> str:
        return ""


class Visited(HubOAuthenticated, web.RequestHandler):  # type: ignore[misc]
    """Base of all that only visitors who are known get to see."""

    hub_auth_class = Login
    token: str

    async def visitor(self) -> dict[str, Any] | None:
        """Return who that is, as the Hub says; ``None`` for nobody. Sets ``token``.

        Raises
        ------
        Forbidden
            They may not use this service.
        Unavailable
            The Hub does not answer.
        """
        try:
            model = await self.hub_auth.get_user(self, sync=False)
        except web.HTTPError:  # the Hub's address is in what it says
            raise Unavailable(
                "JupyterHub does not answer, so it cannot be told who you are.",
                hint="Kernels go on with what they have. Try again when the Hub is there.",
            ) from None
        if model is None:
            self._hub_auth_user_cache = None
            return None
        try:
            self.check_hub_user(model)
        except UserNotAllowed:
            raise Forbidden(
                f"{str(model['name'])[:64]!r} may not use this page.",
                hint="An administrator of the Hub can give the scope access:services!service=gpu.",
            ) from None
        self._hub_auth_user_cache = model
        self.token = self.hub_auth.get_token(self)
        return dict(model)

    def check_site(self) -> None:
        """Refuse what another site has sent, in whose name ever.

        Raises
        ------
        Forbidden
            The browser says that it was no page of this Hub.
        """
        headers = self.request.headers
        site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
        foreign = site not in (None, "same-origin", "none")
        if site is None and origin is not None:
            foreign = urlsplit(origin).netloc != self.request.host
        if foreign:
            raise Forbidden("Another site has sent this request.", hint="Use the GPU page itself.")

    def check_page(self) -> None:
        """Refuse what no page of ours has sent: users' servers have the same origin as we.

        Reading is no exception, unlike with the Hub's own check.

        Raises
        ------
        Forbidden
            The token against forged requests, which only a page of ours can read, is missing or
            another.
        """
        if self.hub_auth.get_token(self, in_cookie=False):
            return  # no browser adds that header by itself
        sent = self.request.headers.get("X-XSRFToken", "").encode(errors="replace")
        known = self.xsrf_token
        if not hmac.compare_digest(sent, known if isinstance(known, bytes) else known.encode()):
            raise Forbidden(
                "This request did not come from the GPU page, or you have logged in anew since.",
                hint="Load the page again.",
            )

    def check_xsrf_cookie(self) -> None:
        """Tornado's own check, and the Hub's: ours are ``check_site`` and ``check_page``."""


def unknown() -> GpuError:
    """Return the error of somebody who is not logged in."""
    return Unauthenticated(
        "You are not logged in any more.", hint="Load the page again to log in at the Hub."
    )
