"""Guards every request: allowed hosts, authentication, and security headers of the responses.

The list of hosts prevents DNS rebinding; `Origin` and a token in each form prevent cross-site request forgery; the
content security policy allows only the dashboard's own script and style sheet.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from oncehouse.common.http_auth import HttpAuth

SESSION_COOKIE = "oncehouse_session"
SESSION_SECONDS = 12 * 3600
_OPEN_PATH, _OPEN_FOLDER = "/login", "/static/"
_MOST_SESSIONS = 1000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
SAFE_METHODS = frozenset({"GET", "HEAD"})
LOCAL_SESSION = "local"


class Sessions:
    """Sessions of logged-in browsers; kept in memory, so that a restart requires a new login."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[str, float] = {}
        self._key = secrets.token_bytes(32)

    def begin(self) -> str:
        now = self._monotonic()
        self._ends = {name: ends for name, ends in self._ends.items() if ends > now}
        while len(self._ends) >= _MOST_SESSIONS:
            del self._ends[min(self._ends, key=self._ends.__getitem__)]
        session = secrets.token_urlsafe(32)
        self._ends[session] = now + SESSION_SECONDS
        return session

    def end(self, session: str) -> None:
        self._ends.pop(session, None)

    def knows(self, session: str) -> bool:
        return self._ends.get(session, 0.0) > self._monotonic()

    def keeps(self, session: str | None) -> bool:
        """Whether a session is still valid: a bearer token is valid for its whole request."""
        return session is not None and (session == LOCAL_SESSION or self.knows(session))

    def form_token(self, session: str) -> str:
        """The token that forms of this session must send."""
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def accepts(self, session: str, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.form_token(session).encode())


class Guard:
    """Wraps the whole application, so that its error responses have the same headers."""

    def __init__(self, app: ASGIApp, *, auth: HttpAuth, sessions: Sessions) -> None:
        self._app = app
        self._auth = auth
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._refuse(scope)
        guarded = _with_headers(send)
        if refusal is not None:
            await refusal(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _refuse(self, scope: MutableMapping[str, Any]) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._auth.knows(hosts[0]):
            return PlainTextResponse("unknown host name; see --allow-host\n", status_code=421)
        if scope["method"] not in SAFE_METHODS and not _is_own(headers):
            return PlainTextResponse("cross-site request refused\n", status_code=403)
        session = self._find_session(headers)
        scope["oncehouse.session"] = session
        if session is not None or _is_open(scope["path"]):
            return None
        if scope["path"] == "/metrics" or scope["method"] not in SAFE_METHODS:
            return PlainTextResponse(
                "a bearer token is needed\n", status_code=401, headers={"www-authenticate": "Bearer"}
            )
        target = scope["path"] + (
            f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        )
        return RedirectResponse(f"/login?next={quote(target, safe='')}", status_code=303)

    def _find_session(self, headers: Headers) -> str | None:
        if self._auth.token is None:
            return LOCAL_SESSION
        if self._auth.authorizes_header(headers.get("authorization", "")):
            return LOCAL_SESSION
        session = read_cookie(headers.get("cookie", ""))
        return session if self._sessions.knows(session) else None


def _is_open(path: str) -> bool:
    """Whether the path needs no login."""
    return path == _OPEN_PATH or path.startswith(_OPEN_FOLDER)


def read_cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(SESSION_COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _is_own(headers: Headers) -> bool:
    """Whether a request that changes state comes from a page of the dashboard, by the headers of the browser."""
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = headers.get("origin")
    if origin is None:
        return True  # no browser, or an old one: the form's token decides
    try:
        own = urlsplit(origin).netloc.lower()
    except ValueError:  # such as http://[
        return False
    return own == headers.get("host", "").strip().lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own: Iterable[tuple[bytes, bytes]] = message.get("headers", [])
            named = {name.lower() for name, _ in own}
            added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            if b"cache-control" not in named:
                added.append((b"cache-control", b"no-store"))
            message["headers"] = [*own, *added]
        await send(message)

    return sending


def safe_next(target: str) -> str:
    """The page after the login: a path of the dashboard, never a URL of another site."""
    plain = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if plain else "/"
