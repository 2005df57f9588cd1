"""The HTTP endpoint of the inbox: accepts messages from callers without Kafka, and answers once they are committed.

One route, `POST /messages/{inbox}`, and a health check. The caller names the message by `Idempotency-Key`: the same key
with the same body is answered as a repeat, with another body as a conflict. A caller without an answer sends again.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from oncehouse.common.http_auth import brings_token
from oncehouse.errors import ConfigurationError, OncehouseError, TransientError
from oncehouse.messaging.inbox.ids import MAX_ID_LENGTH
from oncehouse.messaging.inbox.store_messages import Receipt
from oncehouse.messaging.inbox.stored import StoredInbox
from oncehouse.messaging.message import MESSAGE_ID, Message

_STATUS = {Receipt.NEW: 201, Receipt.REPEATED: 200}
# Requests that write to the database at once. Others wait with their bodies in memory; beyond the bound they get 503.
_CONCURRENT_STORES = 16
_MOST_REQUESTS = 256
_RETRY_AFTER = {"Retry-After": "5"}


class _RefusalError(Exception):
    def __init__(self, status: int, why: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, why, headers)
        self.answer = JSONResponse({"error": why}, status_code=status, headers=headers)


class InboxEndpoint:
    def __init__(
        self, inboxes: Mapping[str, StoredInbox], *, token: str | None = None, max_body_bytes: int = 1 << 20
    ) -> None:
        self._inboxes = dict(inboxes)
        self._token = token
        self._max_body_bytes = max_body_bytes
        self._store_slots = asyncio.Semaphore(_CONCURRENT_STORES)
        self.app = Starlette(
            routes=[
                Route("/messages/{inbox}", self.receive, methods=["POST"]),
                Route("/health", self.check_health, methods=["GET"]),
            ]
        )

    async def receive(self, request: Request) -> JSONResponse:
        try:
            self._authorize(request)
            inbox = self._find(request.path_params["inbox"])
            message_id = _read_id(request)
            message = _message(inbox.name, message_id, await self._read_body(request), request)
            async with self._store_slots:
                receipt = await run_in_threadpool(_store, inbox, message)
        except _RefusalError as refusal:
            return refusal.answer
        return JSONResponse({"id": message_id, "result": receipt.value}, status_code=_STATUS[receipt])

    async def check_health(self, _request: Request) -> JSONResponse:
        try:
            for inbox in self._inboxes.values():
                await run_in_threadpool(inbox.check)
        except OncehouseError as error:
            return JSONResponse({"ok": False, "error": type(error).__name__}, status_code=503)
        return JSONResponse({"ok": True})

    def _authorize(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        if self._token is not None and not brings_token(given, self._token):
            raise _RefusalError(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})

    def _find(self, name: str) -> StoredInbox:
        if name not in self._inboxes:
            raise _RefusalError(404, "no such inbox")
        return self._inboxes[name]

    async def _read_body(self, request: Request) -> bytes:
        limit = self._max_body_bytes
        declared = request.headers.get("content-length", "")
        too_large = _RefusalError(413, f"a message may have at most {limit} bytes")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        body = bytearray()
        # The declared length may be missing or wrong.
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large
        return bytes(body)


def _read_id(request: Request) -> str:
    keys = request.headers.getlist("idempotency-key")
    if len(keys) != 1 or not 0 < len(keys[0]) <= MAX_ID_LENGTH or not keys[0].isprintable():
        raise _RefusalError(
            400, f"the header Idempotency-Key must stand once, with 1 to {MAX_ID_LENGTH} printable characters"
        )
    return keys[0]


def _message(name: str, message_id: str, body: bytes, request: Request) -> Message:
    raw = {name.lower(): value for name, value in request.headers.raw}
    kind = raw.get(b"content-type")
    return Message(
        topic=name,
        partition=-1,
        offset=-1,
        key=raw.get(b"message-key"),
        value=body,
        headers=((MESSAGE_ID, message_id.encode()), *((("content-type", kind),) if kind else ())),
    )


def _store(inbox: StoredInbox, message: Message) -> Receipt:
    try:
        receipt = inbox.store_one(message)
    except TransientError:
        raise _RefusalError(
            503, "the database is unavailable; send the message again", _RETRY_AFTER
        ) from None
    if receipt is Receipt.CONFLICT:
        raise _RefusalError(409, "this Idempotency-Key was used for another body")
    return receipt


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"The HTTP endpoint cannot listen on {host}:{port} ({error}); change inbox.inlet.host or inbox.inlet.port"
        ) from error


def serve(app: Any, listener: socket.socket, stop: threading.Event, *, drain_seconds: float) -> None:
    """Serve until `stop`; running requests are answered first, within the drain time."""
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            limit_concurrency=_MOST_REQUESTS,
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
        )
    )
    # In the main thread uvicorn would install its own signal handlers and end the process.
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="oncehouse-inlet", daemon=True
    )
    thread.start()
    while thread.is_alive() and not stop.wait(0.2):
        pass
    server.should_exit = True
    thread.join()
