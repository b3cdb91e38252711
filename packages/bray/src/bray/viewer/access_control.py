"""Who may ask the viewer, and what a browser may do with its replies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from aiohttp import web

from bray_core.errors import AlreadyExistsError, BrayError, NotFoundError
from bray_server.limits.access import LOOPBACK, Tokens, is_own_name, is_same_origin

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_COOKIE = "bray-view"
_MAX_TOKEN = 1000
_MAX_FIELDS = 10
"""Most fields of the form that asks for the token."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_READING = ("GET", "HEAD")
_MARK = "Bray-Page"
"""Header of every request that changes something: another site's script cannot set it unasked."""
_OPEN = ("/login", "/static/style.css")

logger = logging.getLogger(__name__)


class AccessControl:
    """The middleware in front of every page.

    Args:
        token: secret that a visitor must know; None asks for none.
        form: HTML of the page that asks for the token, with `$MESSAGE` in it.
    """

    def __init__(self, token: str | None, form: str) -> None:
        self._form = form
        self._tokens = Tokens([] if token is None else [token])
        # The cookie proves that its owner knew the token, and does not tell it.
        self._proof = hashlib.blake2b(b"bray view", key=_key(token)).hexdigest()

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Show the form that asks for the token."""
        return self._ask("This page needs a token: ask who started it.", 200)

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Check the token that the form sent, and set the cookie."""
        form = parse_qs((await request.read()).decode(errors="replace"), max_num_fields=_MAX_FIELDS)
        token = form.get("token", [""])[0]
        if not self._tokens.accept(token[:_MAX_TOKEN].encode(errors="replace")):
            return self._ask("Wrong token.", 401)
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(_COOKIE, self._proof, httponly=True, samesite="Strict", path="/")
        return response

    def _ask(self, message: str, status: int) -> web.Response:
        text = self._form.replace("$MESSAGE", message)
        return web.Response(text=text, status=status, content_type="text/html")

    @web.middleware
    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through to its handler, or refuse it: aiohttp calls this first."""
        response = await self._answer(request, handler)
        response.headers.update(_HEADERS)
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._tokens.required and not is_own_name(request.headers.get("Host", "")):
            # Another site's name that resolves to this machine: its scripts would read along.
            known = ", ".join(LOOPBACK)
            return _error(403, f"host: expected one of {known}, or start with --token-env")
        if not self._is_known(request) and request.path not in _OPEN:
            if request.path == "/":  # a person in a browser: show the form, not an error
                return web.Response(status=303, headers={"Location": "/login"})
            return _error(401, "expected 'Authorization: Bearer TOKEN', or the login of the page")
        if request.method not in _READING and request.path != "/login" and not _is_own(request):
            return _error(403, f"expected a request of this page itself, with header {_MARK}")
        try:
            return await handler(request)
        except NotFoundError as error:
            return _error(404, str(error))
        except AlreadyExistsError as error:
            return _error(409, str(error))
        except (BrayError, ValueError) as error:
            return _error(400, str(error))
        except web.HTTPException as error:
            return _error(error.status, error.reason)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a page must not end the server
            logger.exception("%s %s", request.method, request.path)
            return _error(500, f"{type(error).__name__}: {error}")

    def _is_known(self, request: web.Request) -> bool:
        if not self._tokens.required:
            return True
        cookie = request.cookies.get(_COOKIE, "")
        given = request.headers.get("Authorization", "")[:_MAX_TOKEN]
        # Compared in constant time: how long it takes tells nothing about the secret.
        return hmac.compare_digest(_bytes(cookie), self._proof.encode()) or (
            self._tokens.accept_header(_bytes(given))
        )


def _bytes(header: str) -> bytes:
    """Return a header's bytes: aiohttp keeps those that are not UTF-8 as surrogates."""
    return header.encode(errors="surrogateescape")


def _is_own(request: web.Request) -> bool:
    """Return whether the viewer's page or a program sent a request, not another site's page."""
    headers = request.headers
    if not is_same_origin(
        headers.get("Host", ""), headers.get("Origin"), headers.get("Sec-Fetch-Site")
    ):
        return False
    return headers.get(_MARK) == "1"


def _key(token: str | None) -> bytes:
    return hashlib.blake2b((token or "").encode()).digest()


def _error(status: int, message: str) -> web.Response:
    body = json.dumps({"error": {"status": status, "message": message}})
    return web.Response(text=body, status=status, content_type="application/json")
