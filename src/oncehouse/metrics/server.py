"""`GET /metrics` for a process that has no web server of its own: `oncehouse metrics --listen` and `oncehouse run`.

Each scrape reads the current values, at most two at once: a slow one does not delay the next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from oncehouse.common.http_auth import HttpAuth
from oncehouse.common.http_server import HttpServer, open_listener
from oncehouse.metrics.exposition import write_text

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_CONCURRENT_SCRAPES = 2


class MetricsServer(HttpServer):
    """Listens from its creation until `close`."""

    def __init__(self, auth: HttpAuth, registry: CollectorRegistry) -> None:
        listener = open_listener(
            auth.host, auth.port, what="the metrics endpoint", advice="name another address"
        )
        super().__init__(make_app(auth, registry), listener, name="oncehouse-metrics", drain_seconds=1.0)


def make_app(auth: HttpAuth, registry: CollectorRegistry) -> ASGIApp:
    slots = asyncio.Semaphore(_CONCURRENT_SCRAPES)

    async def respond(request: Request) -> Response:
        # A client with the token may use any host name: a page in a browser does not know the token.
        if auth.token is None and not auth.knows(request.headers.get("host", "")):
            return PlainTextResponse("unknown host name\n", status_code=421)
        if not auth.authorizes_header(request.headers.get("authorization", "")):
            return PlainTextResponse("a bearer token is needed\n", status_code=401)
        if request.url.path != "/metrics" or request.method != "GET":
            return PlainTextResponse("only GET /metrics is served\n", status_code=404)
        try:
            async with slots:
                body, content_type = await run_in_threadpool(
                    write_text, registry, request.headers.get("accept", "")
                )
        except Exception as error:  # noqa: BLE001 - a request's edge: the next scrape may do better
            return PlainTextResponse(f"unexpected {type(error).__name__}\n", status_code=500)
        return Response(body, media_type=content_type, headers={"cache-control": "no-store"})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (await respond(Request(scope)))(scope, receive, send)

    return app
