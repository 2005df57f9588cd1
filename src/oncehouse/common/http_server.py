"""The HTTP server of the dashboard, the metrics and the inbox: uvicorn, with limits that hold before any token is read.

A client gets `HttpLimits.request_seconds` for each part of a request. When an address, or the server, has as many
connections as it may have, the oldest one that still waits for its request is closed, so that silent connections do
not shut others out; if all of them are being answered, the new one gets 503. A response that no client reads is given
up.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import math
import socket
import threading
from dataclasses import dataclass
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from oncehouse.errors import ConfigurationError

_TIMEOUT_RESPONSE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    b"content-length: 36\r\n\r\nthe request did not arrive in time.\n"
)


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    connections: int = 512
    connections_per_address: int = 128
    """For one IPv4 address, or one /64 network of IPv6. A reverse proxy is one address."""
    request_seconds: float = 10.0
    """For the headers of a request, counted from the connection or the response before."""
    body_seconds: float = 30.0
    """For the body, counted from the headers."""
    unread_seconds: float = 60.0
    """How long a response may wait for a client that does not read it."""


class _Protocol(H11Protocol):
    """A connection with deadlines. `connections` of uvicorn are the open ones of this server."""

    def __init__(self, *, limits: HttpLimits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._begun: object | None = None
        self.opened_at = self.loop.time()
        self.network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.network = find_network(transport.get_extra_info("peername"))
        if not self._make_place():
            self.limit_concurrency = 0  # uvicorn answers 503
        super().connection_made(transport)
        if len(self.connections) > 2 * self._limits.connections:
            transport.abort()
        else:
            self._expect(self._limits.request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self._expect_reader(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow_request()

    def on_response_complete(self) -> None:
        self._expect(self._limits.request_seconds)
        super().on_response_complete()
        # The next request may have arrived together with the last one.
        self._follow_request()

    def _follow_request(self) -> None:
        if self.transport.is_closing() or not self.waits_for_request:
            self._expect(None)
        elif self.cycle is not None and self.cycle is not self._begun and not self.cycle.response_complete:
            self._begun = self.cycle
            self._expect(self._limits.body_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader(self._limits.unread_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect_reader(None)

    @property
    def waits_for_request(self) -> bool:
        """Whether a part of the next request is missing."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _make_place(self) -> bool:
        """Whether the connection may be answered; the oldest one that waits gives way if there are too many."""
        everywhere = [other for other in self.connections if isinstance(other, _Protocol)]
        here = [other for other in everywhere if other.network == self.network]
        for group, most in (
            (here, self._limits.connections_per_address),
            (everywhere, self._limits.connections),
        ):
            if len(group) >= most:
                _close_oldest(group)
                if sum(not other.waits_for_request for other in group) >= most:
                    return False
        return True

    def _expect(self, seconds: float | None) -> None:
        """The request, or what is left of it, must have arrived after so long; None: it has arrived."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._give_up)

    def _expect_reader(self, seconds: float | None) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _give_up(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if self.conn.trailing_data[0] if is_idle else not self.cycle.response_started:
            self.transport.write(_TIMEOUT_RESPONSE)
        self.transport.close()
        # For a client that does not read what is left to send.
        self._expect_reader(self._limits.unread_seconds)


def _close_oldest(connections: list[_Protocol]) -> None:
    """Close the oldest connection that waits for its request, if there is one."""
    waiting = [one for one in connections if one.waits_for_request]
    if waiting:
        oldest = min(waiting, key=lambda one: one.opened_at)
        oldest.connections.discard(oldest)
        oldest.transport.abort()


def find_network(peer: Any) -> str:
    """What counts as one address: an IPv4 address, or a /64 network of IPv6, which one client has for itself."""
    try:
        address = ipaddress.ip_address(peer[0])
    except (TypeError, ValueError, IndexError):
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


def open_listener(host: str, port: int, *, what: str, advice: str) -> socket.socket:
    """Raises ConfigurationError where the address is taken or unknown."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{what} cannot listen on {host}:{port} ({error}); {advice}") from error


class HttpServer:
    """Serves from its creation until `close`, on its own thread, so that the main thread keeps the signals."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        name: str,
        drain_seconds: float = 3.0,
        limits: HttpLimits | None = None,
    ) -> None:
        limits = limits or HttpLimits()
        self.port = int(listener.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=cast("Any", functools.partial(_Protocol, limits=limits)),
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                # With proxy headers, a client could forge its address.
                proxy_headers=False,
                # Our own deadline ends idle connections.
                timeout_keep_alive=math.ceil(limits.request_seconds) + 1,
                timeout_graceful_shutdown=max(1, round(drain_seconds)),
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name=name, daemon=True
        )
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Running requests are answered first, within the drain time."""
        self._server.should_exit = True
        self._thread.join()
