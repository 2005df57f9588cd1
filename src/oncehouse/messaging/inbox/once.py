"""`@inbox.once`: a handler that sees each message once, because its id is remembered with the handler's own effects.

The caller begins and ends the transaction; nothing here does. A message whose id is there already is skipped and
counted. Handlers may be plain or async, for one message or for a batch; deciding is shared, only waiting differs.
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
from oncehouse.messaging.inbox.ids import (
    NO_SOURCES,
    Identity,
    Sources,
    check_consumer,
    check_keep,
    check_sources,
    identify,
)
from oncehouse.messaging.inbox.seen_ids import forget, remember
from oncehouse.messaging.message import Message

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Counts:
    handled: int = 0
    """Messages handed to the handler, also when its transaction was rolled back afterwards."""
    repeated: int = 0
    """Messages that were skipped, because they had been handled before."""


class Counter:
    """Counts by consumer; handlers may run in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counts] = {}

    def register(self, consumer: str) -> None:
        with self._lock:
            if consumer in self._counts:
                raise ConfigurationError(
                    f"Inbox: the consumer {consumer!r} has a handler already. What one has handled the other would "
                    "never see; give each handler a name of its own."
                )
            self._counts[consumer] = Counts()

    def add(self, consumer: str, *, handled: int, repeated: int) -> None:
        with self._lock:
            before = self._counts[consumer]
            self._counts[consumer] = Counts(
                handled=before.handled + handled, repeated=before.repeated + repeated
            )

    def read(self) -> dict[str, Counts]:
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a handler was called with: one message, or several."""

    messages: tuple[Message, ...]
    alone: bool
    sources: Sources = field(default_factory=dict)

    @cached_property
    def ids(self) -> list[Identity]:
        return [identify(message, self.sources) for message in self.messages]

    def fresh(self, ids: set[str]) -> tuple[Message, ...]:
        """The messages of these ids, in their order; of several copies the first."""
        left = set(ids)
        found = []
        for message, one in zip(self.messages, self.ids, strict=True):
            if one.id in left:
                left.discard(one.id)
                found.append(message)
        return tuple(found)

    def argument(self, fresh: Sequence[Message]) -> Message | list[Message]:
        return fresh[0] if self.alone else list(fresh)


def delivery_of(given: Message | Iterable[Message], sources: Sources = NO_SOURCES) -> Delivery:
    if isinstance(given, Message):
        return Delivery(messages=(given,), alone=True, sources=sources)
    return Delivery(messages=tuple(given), alone=False, sources=sources)


class Inbox:
    """Remembers by consumer which messages were handled, in the database that the handlers write to."""

    def __init__(self) -> None:
        self._counter = Counter()

    @property
    def counts(self) -> dict[str, Counts]:
        """By consumer, since this process started."""
        return self._counter.read()

    def once(
        self, *, consumer: str, keep: str | float, sources: Sources = NO_SOURCES
    ) -> Callable[[HandlerT], HandlerT]:
        """Wrap a handler `(session, message)` or `(session, messages)`.

        The session is SQLAlchemy's Session or Connection, AsyncSession or AsyncConnection for an async handler, with
        a transaction that the caller commits. `keep` is for how long ids are remembered: longer than a message can
        come again. A handler of messages gets the new ones as a list and is not called when there are none. `sources`
        names topics whose ids are those of another topic, such as {"orders-mirror": "orders"}.
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
    """The statements of one call, for plain connections; async shells run them by `run_sync`."""

    def __init__(self, consumer: str, keep_seconds: float, counter: Counter, sources: Sources) -> None:
        self.consumer, self.sources = consumer, sources
        self._keep_seconds = keep_seconds
        self._counter = counter

    def begin(self, connection: Connection, delivery: Delivery) -> tuple[Message, ...]:
        if not delivery.messages:
            return ()
        ids = remember(connection, self.consumer, delivery.ids, self._keep_seconds)
        fresh = delivery.fresh(ids)
        self._counter.add(self.consumer, handled=len(fresh), repeated=len(delivery.messages) - len(fresh))
        return fresh

    def undo(self, connection: Connection, fresh: Sequence[Message]) -> None:
        """A caller who swallows the handler's error and commits must not have remembered its messages."""
        forget(connection, self.consumer, [identify(message, self.sources).id for message in fresh])


def _wrap_plain(once: _Once, handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def run(session: Any, given: Message | Iterable[Message]) -> Any:
        if isinstance(session, AsyncSession | AsyncConnection):
            raise ConfigurationError(_mismatch(once.consumer, handler, "a plain", "an async session"))
        delivery = delivery_of(given, once.sources)
        fresh = once.begin(_connection(session), delivery)
        if not fresh:
            return None
        try:
            return handler(session, delivery.argument(fresh))
        except BaseException:
            # A transaction that the database has failed cannot be committed, and has nothing to undo.
            with suppress(SQLAlchemyError):
                once.undo(_connection(session), fresh)
            raise

    return run


def _wrap_async(once: _Once, handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    async def run(session: Any, given: Message | Iterable[Message]) -> Any:
        if not isinstance(session, AsyncSession | AsyncConnection):
            raise ConfigurationError(_mismatch(once.consumer, handler, "an async", "a plain session"))
        delivery = delivery_of(given, once.sources)
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
    """The connection of a Session or scoped_session, in the transaction it is in; a Connection is its own."""
    return session if isinstance(session, Connection) else session.connection()


async def _async_connection(session: AsyncSession | AsyncConnection) -> AsyncConnection:
    return session if isinstance(session, AsyncConnection) else await session.connection()


def _mismatch(consumer: str, handler: Callable[..., Any], kind: str, got: str) -> str:
    name = getattr(handler, "__name__", "handler")
    return f"Inbox of {consumer}: {name} is {kind} function and was given {got}; both have to be of one kind"
