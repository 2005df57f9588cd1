"""The HTTP endpoint of the inbox: accepts messages from callers without Kafka, and answers once they are committed.

One route, `POST /messages/{inbox}`, and a health check. The caller names the message by `Idempotency-Key`: the same key
with the same body is answered as a repeat, with another body as a conflict. A caller without an answer sends again.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from oncehouse.common.http_auth import brings_token
from oncehouse.common.http_server import HttpLimits, HttpServer, open_listener
from oncehouse.errors import OncehouseError, TransientError
from oncehouse.messaging.inbox.ids import MAX_ID_LENGTH
from oncehouse.messaging.inbox.store_messages import Receipt
from oncehouse.messaging.inbox.stored import StoredInbox
from oncehouse.messaging.message import MESSAGE_ID, Message

_STATUS = {Receipt.NEW: 201, Receipt.REPEATED: 200}
# Requests that write to the database at once. Others wait with their bodies in memory, as many as may be connected.
_CONCURRENT_STORES = 16
_LIMITS = HttpLimits(connections=256, connections_per_address=192)
# Anybody may ask for the health, so the database is asked once for all who ask within this time.
_HEALTH_SECONDS = 2.0
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
        self._health_lock = asyncio.Lock()
        self._health_until = 0.0
        self._health = ""
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
        except ClientDisconnect:
            return JSONResponse({"error": "the body did not arrive"}, status_code=400)
        return JSONResponse({"id": message_id, "result": receipt.value}, status_code=_STATUS[receipt])

    async def check_health(self, _request: Request) -> JSONResponse:
        async with self._health_lock:
            if time.monotonic() >= self._health_until:
                self._health = await self._ask_database()
                self._health_until = time.monotonic() + _HEALTH_SECONDS
        return JSONResponse(
            {"ok": False, "error": self._health} if self._health else {"ok": True},
            status_code=503 if self._health else 200,
        )

    async def _ask_database(self) -> str:
        """The name of the error, or an empty text."""
        try:
            for inbox in self._inboxes.values():
                await run_in_threadpool(inbox.check)
        except OncehouseError as error:
            return type(error).__name__
        return ""

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
    return open_listener(
        host, port, what="The HTTP endpoint", advice="change inbox.inlet.host or inbox.inlet.port"
    )


def serve(app: Any, listener: socket.socket, stop: threading.Event, *, drain_seconds: float) -> None:
    """Serve until `stop`; running requests are answered first, within the drain time."""
    server = HttpServer(app, listener, name="oncehouse-inlet", drain_seconds=drain_seconds, limits=_LIMITS)
    while server.is_alive() and not stop.wait(0.2):
        pass
    server.close()
