"""`@inbox.once`: a handler is called once per message, because the message id is stored with the handler's own effects.

The caller begins and ends the transaction. A message whose id is stored already is skipped and counted. Handlers may be
plain or async, for one message or for a batch; the decisions are shared.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.inbox.handled_ids import delete_ids, insert_new_ids
from oncehouse.messaging.inbox.ids import (
    NO_SOURCES,
    MessageIdentity,
    Sources,
    check_consumer,
    check_keep,
    check_sources,
    identify,
)
from oncehouse.messaging.message import Message

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class InboxCounts:
    handled: int = 0
    """Messages passed to the handler, even if its transaction was rolled back afterwards."""
    repeated: int = 0
    """Messages that were skipped because they had been handled before."""


class InboxCounter:
    """Counts by consumer; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, InboxCounts] = {}

    def register(self, consumer: str) -> None:
        with self._lock:
            if consumer in self._counts:
                raise ConfigurationError(
                    f"Inbox: the consumer {consumer!r} has a handler already. Each would skip messages that the "
                    "other has handled; give each handler its own consumer name."
                )
            self._counts[consumer] = InboxCounts()

    def add(self, consumer: str, *, handled: int, repeated: int) -> None:
        with self._lock:
            before = self._counts[consumer]
            self._counts[consumer] = InboxCounts(
                handled=before.handled + handled, repeated=before.repeated + repeated
            )

    def read(self) -> dict[str, InboxCounts]:
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The messages of one call: one, or a batch."""

    messages: tuple[Message, ...]
    alone: bool
    sources: Sources = field(default_factory=dict)

    @cached_property
    def ids(self) -> list[MessageIdentity]:
        return [identify(message, self.sources) for message in self.messages]

    def fresh(self, ids: set[str]) -> tuple[Message, ...]:
        """The messages with these ids, in order; the first of several copies."""
        left = set(ids)
        found = []
        for message, one in zip(self.messages, self.ids, strict=True):
            if one.id in left:
                left.discard(one.id)
                found.append(message)
        return tuple(found)

    def argument(self, fresh: Sequence[Message]) -> Message | list[Message]:
        return fresh[0] if self.alone else list(fresh)


def make_delivery(messages: Message | Iterable[Message], sources: Sources = NO_SOURCES) -> Delivery:
    if isinstance(messages, Message):
        return Delivery(messages=(messages,), alone=True, sources=sources)
    return Delivery(messages=tuple(messages), alone=False, sources=sources)


class Inbox:
    """Stores per consumer which messages were handled, in the database that the handlers write to."""

    def __init__(self) -> None:
        self._counter = InboxCounter()

    @property
    def counts(self) -> dict[str, InboxCounts]:
        """By consumer, since this process started."""
        return self._counter.read()

    def once(
        self, *, consumer: str, keep: str | float, sources: Sources = NO_SOURCES
    ) -> Callable[[HandlerT], HandlerT]:
        """Wrap a handler `(session, message)` or `(session, messages)`.

        The session is SQLAlchemy's Session or Connection, AsyncSession or AsyncConnection for an async handler, with
        a transaction that the caller commits. `keep` is how long ids are stored: longer than a message can be
        repeated. A batch handler gets the new messages as a list and is not called without any. `sources` maps topics
        to the topic whose ids they share, such as {"orders-mirror": "orders"}.
        """
        check_consumer(consumer)
        keep_seconds = check_keep(keep)
        check_sources(sources)
        self._counter.register(consumer)

        def decorate(handler: HandlerT) -> HandlerT:
            wrap = _wrap_async if inspect.iscoroutinefunction(handler) else _wrap_plain
            wrapped: Any = wrap(_Once(consumer, keep_seconds, self._counter, sources), handler)
            return wrapped  # type: ignore[no-any-return]

        return decorate


class _Once:
    """The statements of one call, for plain connections; async wrappers run them by `run_sync`."""

    def __init__(self, consumer: str, keep_seconds: float, counter: InboxCounter, sources: Sources) -> None:
        self.consumer, self.sources = consumer, sources
        self._keep_seconds = keep_seconds
        self._counter = counter

    def begin(self, connection: Connection, delivery: Delivery) -> tuple[Message, ...]:
        if not delivery.messages:
            return ()
        ids = insert_new_ids(connection, self.consumer, delivery.ids, self._keep_seconds)
        fresh = delivery.fresh(ids)
        self._counter.add(self.consumer, handled=len(fresh), repeated=len(delivery.messages) - len(fresh))
        return fresh

    def undo(self, connection: Connection, fresh: Sequence[Message]) -> None:
        """Needed if the caller catches the handler's error and commits anyway."""
        delete_ids(connection, self.consumer, [identify(message, self.sources).id for message in fresh])


def _wrap_plain(once: _Once, handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def run(session: Any, messages: Message | Iterable[Message]) -> Any:
        if isinstance(session, AsyncSession | AsyncConnection):
            raise ConfigurationError(_mismatch(once.consumer, handler, "a plain", "an async session"))
        delivery = make_delivery(messages, once.sources)
        fresh = once.begin(_connection(session), delivery)
        if not fresh:
            return None
        try:
            return handler(session, delivery.argument(fresh))
        except BaseException:
            # A transaction in which a statement failed cannot be committed, so there is nothing to undo.
            with suppress(SQLAlchemyError):
                once.undo(_connection(session), fresh)
            raise

    return run


def _wrap_async(once: _Once, handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    async def run(session: Any, messages: Message | Iterable[Message]) -> Any:
        if not isinstance(session, AsyncSession | AsyncConnection):
            raise ConfigurationError(_mismatch(once.consumer, handler, "an async", "a plain session"))
        delivery = make_delivery(messages, once.sources)
        fresh = await (await _async_connection(session)).run_sync(once.begin, delivery)
        if not fresh:
            return None
        try:
            return await handler(session, delivery.argument(fresh))
        except BaseException:
            with suppress(SQLAlchemyError):
                await (await _async_connection(session)).run_sync(once.undo, fresh)
            raise

    return run


def _connection(session: Any) -> Connection:
    """The connection of a Session or scoped_session in its transaction; a Connection is returned as it is."""
    return session if isinstance(session, Connection) else session.connection()


async def _async_connection(session: AsyncSession | AsyncConnection) -> AsyncConnection:
    return session if isinstance(session, AsyncConnection) else await session.connection()


def _mismatch(consumer: str, handler: Callable[..., Any], kind: str, got: str) -> str:
    name = getattr(handler, "__name__", "handler")
    return f"Inbox of {consumer}: {name} is {kind} function and was called with {got}; use both plain or both async"
