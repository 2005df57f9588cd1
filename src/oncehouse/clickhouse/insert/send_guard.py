"""The last check of the deadline before bytes of an INSERT leave: in the connection, after encoding and connecting.

Holds: while `guard_sends` is open, nothing of a request goes out after its deadline. Before the first byte that is
an error that says that nothing was sent; later the connection is given up half-way, with an unknown outcome.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from oncehouse.clickhouse.insert.deadline import read_moment
from oncehouse.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import PoolManager

    from oncehouse.clickhouse.insert.deadline import Deadline, Moment


_ADVICE = (
    "the batch is tried again. If this comes often, the process or its machine stood still, or Spark has too few "
    "executors for its load tasks."
)


@dataclass
class _SendLimit:
    deadline: Deadline
    in_flight_seconds: float
    begun: bool = False
    advice: str = _ADVICE

    def require_time(self) -> None:
        now = read_moment()
        if self.begun:
            if self.deadline.is_over(now, grace_seconds=self.in_flight_seconds):
                raise TimeoutError("the INSERT took too long on its way; the rest of it was not sent")
        elif self.deadline.is_over(now):
            raise TransientError(
                f"the INSERT was not sent: its attempt began {self.deadline.elapsed(now):.0f} s ago and had "
                f"{self.deadline.seconds:.0f} s, so another process may have taken over. Nothing was sent; "
                f"{self.advice}{_describe_clocks(self.deadline, now)}"
            )
        self.begun = True


def _describe_clocks(deadline: Deadline, now: Moment) -> str:
    if not deadline.came_from_elsewhere:
        return ""
    began, here = (
        datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
        for at in (deadline.began.wall_seconds, now.wall_seconds)
    )
    return (
        f" It began at {began} UTC by the clock of another machine, and here it is {here} UTC: if that is not so, set "
        "the clocks."
    )


_sending: ContextVar[_SendLimit | None] = ContextVar("oncehouse_sending", default=None)


@contextmanager
def guard_sends(
    deadline: Deadline | None, *, in_flight_seconds: float, advice: str = _ADVICE
) -> Iterator[None]:
    """What is sent inside must begin before the deadline, and be sent whole `in_flight_seconds` after it.

    `advice` ends the error that says that nothing was sent.
    """
    if deadline is None:
        yield
        return
    token = _sending.set(_SendLimit(deadline=deadline, in_flight_seconds=in_flight_seconds, advice=advice))
    try:
        yield
    finally:
        _sending.reset(token)


class _Guarded:
    """A connection that asks before each piece it sends; what opens the connection itself is not asked about."""

    _is_connecting = False

    def connect(self) -> None:
        self._is_connecting = True
        try:
            super().connect()  # type: ignore[misc]  # of the connection that this is mixed into
        finally:
            self._is_connecting = False

    def send(self, data: Any) -> None:
        sending = _sending.get()
        if sending is not None and not self._is_connecting:
            if getattr(self, "sock", None) is None:
                self.connect()
            sending.require_time()
        super().send(data)  # type: ignore[misc]


class _GuardedConnection(_Guarded, HTTPConnection):
    pass


class _GuardedTlsConnection(_Guarded, HTTPSConnection):
    pass


class _GuardedPool(HTTPConnectionPool):
    ConnectionCls = _GuardedConnection


class _GuardedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _GuardedTlsConnection


def guard(pools: PoolManager) -> None:
    """Let all further connections of the manager ask before they send."""
    pools.pool_classes_by_scheme = {"http": _GuardedPool, "https": _GuardedTlsPool}
    pools.clear()
