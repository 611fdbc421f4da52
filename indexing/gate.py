"""What every request passes before it reaches a route, and every answer on its way out.

With a token, all but the page's own files and `/health` want it as `Authorization: Bearer`. Without one (which is allowed on
loopback only), the request must be addressed to this machine: a page on the web can make a browser resolve the page's own
name to 127.0.0.1 (DNS rebinding), but cannot change the Host that the browser then sends. Answers get headers that
let a browser run and show only what comes from here. No request's query, and no token, is logged: both are private.
"""

import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indexing.metrics import Metrics

logger = logging.getLogger(__name__)

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Gate:
    """ASGI middleware: checks, counts, and turns what nobody caught into one sentence."""

    def __init__(
        self, app: ASGIApp, token: str | None, public: Collection[str], routes: Collection[str], metrics: Metrics
    ) -> None:
        self._app, self._public, self._routes, self._metrics = app, public, routes, metrics
        self._token = token.encode() if token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, path = time.perf_counter(), scope["path"]
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _marked(message.get("headers", ()))
            await send(message)

        try:
            refusal = self._refusal(path, scope["headers"])
            if refusal:
                await _answer(send_marked, *refusal)
            else:
                await self._app(scope, receive, send_marked)
        except Exception:
            logger.exception("%s %s failed", scope["method"], path if path in self._routes else "of no route")
            if not status:
                await _answer(send_marked, 500, "this is unexpected; the server's log has the traceback")
        finally:
            route = path if path in self._routes else "other"
            self._metrics.answered(route, status, time.perf_counter() - started)

    def _refusal(self, path: str, headers: Collection[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Status and sentence if the request may not go on."""
        if self._token is None:
            hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
            if len(hosts) == 1 and is_local(hosts[0]):
                return None
            return 421, "the request is addressed to another machine; use localhost, or start the service with a token"
        if path in self._public:
            return None
        scheme, _, given = dict(headers).get(b"authorization", b"").partition(b" ")
        # Compared whole whatever differs, so that the time says nothing of where.
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token):
            return None
        return 401, "the token is missing or wrong; send it as Authorization: Bearer"


def is_local(host: str) -> bool:
    """Whether a Host header names this machine by a name that no other server can give it."""
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.rpartition(":")[0] or host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _marked(headers: Collection[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given = {name for name, _ in headers}
    added = {name.encode(): value.encode() for name, value in {"cache-control": "no-store", **SECURITY_HEADERS}.items()}
    return [*headers, *((name, value) for name, value in added.items() if name not in given)]


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
