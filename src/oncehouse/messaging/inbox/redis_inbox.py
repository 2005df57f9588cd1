"""`RedisInbox`: remembers handled messages in Redis, which is cheaper than a database and promises less.

A message is *claimed* for a short time, handled, and then recorded as *done* for as long as `keep` says. The handler's
effects and that record are not one transaction: if a worker dies between them, a handler outlasts its claim, or Redis
loses data, the message is handled twice. No message is lost: only a handler that returned is recorded, and a message
that another process has claimed is refused, not skipped.
"""

from __future__ import annotations

import functools
import inspect
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
import redis.asyncio

from oncehouse.common import failpoints
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.inbox.ids import (
    NO_SOURCES,
    MessageIdentity,
    Sources,
    check_consumer,
    check_keep,
    check_sources,
)
from oncehouse.messaging.inbox.once import Delivery, InboxCounter, InboxCounts, make_delivery
from oncehouse.messaging.message import Message

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

# One key per script, so that a Redis cluster can run each on the node of its key. A claim's value is a random token.
_CLAIM = """
local held = redis.call('GET', KEYS[1])
if held then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ''
"""
_FINISH = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] or not held then
  redis.call('SET', KEYS[1], 'done', 'PX', ARGV[2])
  return held and 1 or 0
end
return 0
"""
# Ids as version 0.1 wrote them are only read.
_FIND = """
return redis.call('GET', KEYS[1]) or ''
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
_DONE = b"done"


class RedisInbox:
    """`client` is a `redis.Redis` for plain handlers, a `redis.asyncio.Redis` for async ones."""

    def __init__(self, client: redis.Redis | redis.asyncio.Redis, *, prefix: str = "oncehouse:inbox") -> None:
        self._client = client
        self._prefix = check_consumer(prefix, what="prefix")
        self._counter = InboxCounter()
        self._lock = threading.Lock()
        self._overrun = 0

    @property
    def counts(self) -> dict[str, InboxCounts]:
        """By consumer, since this process started."""
        return self._counter.read()

    @property
    def overrun(self) -> int:
        """Messages whose claim expired before their handler ended: another process may have handled them too."""
        return self._overrun

    def _count_overrun(self, count: int) -> None:
        with self._lock:
            self._overrun += count

    def once(
        self,
        *,
        consumer: str,
        keep: str | float,
        claim: str | float = "5m",
        sources: Sources = NO_SOURCES,
    ) -> Callable[[HandlerT], HandlerT]:
        """Wrap a handler `(message)` or `(messages)`, plain or async.

        `keep` is how long a handled message is remembered. `claim` is how long a message under way is kept from other
        processes; it must exceed the handler's longest run. While another process holds a message, the wrapped handler
        raises TransientError: retry, and do not commit.
        `sources` maps topics to the topic whose ids they share, such as {"orders-mirror": "orders"}.
        """
        check_consumer(consumer)
        options = _Options(
            consumer=consumer,
            prefix=f"{self._prefix}:{consumer}:",
            keep_ms=_milliseconds(check_keep(keep)),
            claim_ms=_milliseconds(check_keep(claim, what="claim")),
            counter=self._counter,
            count_overrun=self._count_overrun,
            sources=check_sources(sources),
        )
        self._counter.register(consumer)

        def decorate(handler: HandlerT) -> HandlerT:
            is_async = inspect.iscoroutinefunction(handler)
            if is_async != isinstance(self._client, redis.asyncio.Redis):
                raise ConfigurationError(
                    f"Inbox of {consumer}: a plain handler needs redis.Redis, an async one redis.asyncio.Redis"
                )
            wrap = _wrap_async if is_async else _wrap_plain
            wrapped: Any = wrap(self._client, options, handler)
            return wrapped  # type: ignore[no-any-return]

        return decorate


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


@dataclass(frozen=True, kw_only=True)
class _Options:
    consumer: str
    prefix: str
    keep_ms: str
    claim_ms: str
    counter: InboxCounter
    count_overrun: Callable[[int], None]
    sources: Sources


@dataclass(frozen=True, kw_only=True)
class _Scripts:
    """Scripts, each run for one key, all with the same arguments."""

    calls: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]

    def add_to(self, pipeline: Any) -> Any:
        for script, key in self.calls:
            pipeline.eval(script, 1, key, *self.arguments)
        return pipeline


@dataclass(frozen=True, kw_only=True)
class _Claims:
    """What the answers to the claim scripts mean."""

    claimed: tuple[str, ...]
    """Ids to be handled by this call."""
    released: tuple[str, ...]
    """Ids that were claimed and are not to be handled."""
    busy: str | None
    """An id that another process is handling."""


class _HandlerCall:
    """One call of a wrapped handler: builds scripts and reads their answers. The wrappers run them."""

    def __init__(self, options: _Options, messages: Message | Iterable[Message]) -> None:
        self._options = options
        self._delivery: Delivery = make_delivery(messages, options.sources)
        self._token = secrets.token_hex(16)
        self._identities = {one.id: one for one in self._delivery.ids}

    def claim(self) -> _Scripts:
        calls = [(_CLAIM, new) for new in self._identities]
        calls += [(_FIND, earlier) for _, earlier in _list_earlier_ids(self._identities)]
        return self._scripts(calls, self._token, self._options.claim_ms)

    def read_claims(self, answers: Sequence[Any]) -> _Claims:
        return _read_claims(self._identities, answers)

    def release(self, ids: Iterable[str] | None = None) -> _Scripts:
        return self._scripts([(_RELEASE, one) for one in ids or self._identities], self._token)

    def finish(self, ids: Iterable[str]) -> _Scripts:
        return self._scripts([(_FINISH, one) for one in ids], self._token, self._options.keep_ms)

    def select_new(self, claims: _Claims) -> Message | list[Message] | None:
        """The handler's argument, or None where every message is a repeat. Raises TransientError for a busy one."""
        if claims.busy is not None:
            raise TransientError(
                f"Inbox of {self._options.consumer}: message {claims.busy} is being handled elsewhere; try again, and "
                "commit nothing until then"
            )
        new = self._delivery.fresh(set(claims.claimed))
        repeated = len(self._delivery.messages) - len(new)
        self._options.counter.add(self._options.consumer, handled=len(new), repeated=repeated)
        return self._delivery.argument(new) if new else None

    def count_overrun(self, answers: Sequence[int]) -> None:
        self._options.count_overrun(list(answers).count(0))

    def wrap_error(self, error: redis.RedisError) -> TransientError:
        return TransientError(
            f"Inbox of {self._options.consumer}: Redis does not answer ({error}); nothing was handled, try again"
        )

    def _scripts(self, calls: Iterable[tuple[str, str]], *arguments: str) -> _Scripts:
        prefix = self._options.prefix
        return _Scripts(calls=tuple((script, prefix + one) for script, one in calls), arguments=arguments)


def _list_earlier_ids(identities: Mapping[str, MessageIdentity]) -> list[tuple[str, str]]:
    """Each id with the other ids under which its message may have been recorded."""
    return [
        (one.id, earlier)
        for one in identities.values()
        for earlier in sorted({one.before, one.repeats} - {one.id})
    ]


def _read_claims(identities: Mapping[str, MessageIdentity], answers: Sequence[Any]) -> _Claims:
    """`answers`: one per id, then one per earlier id; empty where the key did not exist."""
    held = [answer.encode() if isinstance(answer, str) else answer for answer in answers]
    own = dict(zip(identities, held[: len(identities)], strict=True))
    holders = {one: [value] if value else [] for one, value in own.items()}
    for (one, _), value in zip(_list_earlier_ids(identities), held[len(identities) :], strict=True):
        holders[one] += [value] if value else []
    free = [one for one, values in holders.items() if not values]
    busy = next((one for one, values in holders.items() if values and _DONE not in values), None)
    released = [one for one, value in own.items() if not value and (busy is not None or one not in free)]
    return _Claims(claimed=tuple(free), released=tuple(released), busy=busy)


def _wrap_plain(client: Any, options: _Options, handler: Callable[..., Any]) -> Any:
    def execute(scripts: _Scripts) -> Any:
        return scripts.add_to(client.pipeline(transaction=False)).execute()

    @functools.wraps(handler)
    def run(messages: Message | Iterable[Message]) -> Any:
        call = _HandlerCall(options, messages)
        try:
            claims = call.read_claims(execute(call.claim()))
            if claims.released:
                execute(call.release(claims.released))
        except redis.RedisError as error:
            # Some keys may be claimed: released now, they need not wait until the claim expires.
            with suppress(redis.RedisError):
                execute(call.release())
            raise call.wrap_error(error) from error
        if (argument := call.select_new(claims)) is None:
            return None
        failpoints.reach("redis_inbox.claimed")
        try:
            result = handler(argument)
        except BaseException:
            with suppress(redis.RedisError):  # the claim expires by itself
                execute(call.release(claims.claimed))
            raise
        failpoints.reach("redis_inbox.handled")
        # The effects exist, whether or not Redis can record them; without the record they may be repeated.
        with suppress(redis.RedisError):
            call.count_overrun(execute(call.finish(claims.claimed)))
        return result

    return run


def _wrap_async(client: Any, options: _Options, handler: Callable[..., Any]) -> Any:
    """As `_wrap_plain`, awaiting Redis and the handler."""

    async def execute(scripts: _Scripts) -> Any:
        return await scripts.add_to(client.pipeline(transaction=False)).execute()

    @functools.wraps(handler)
    async def run(messages: Message | Iterable[Message]) -> Any:
        call = _HandlerCall(options, messages)
        try:
            claims = call.read_claims(await execute(call.claim()))
            if claims.released:
                await execute(call.release(claims.released))
        except redis.RedisError as error:
            with suppress(redis.RedisError):
                await execute(call.release())
            raise call.wrap_error(error) from error
        if (argument := call.select_new(claims)) is None:
            return None
        failpoints.reach("redis_inbox.claimed")
        try:
            result = await handler(argument)
        except BaseException:
            with suppress(redis.RedisError):
                await execute(call.release(claims.claimed))
            raise
        failpoints.reach("redis_inbox.handled")
        with suppress(redis.RedisError):
            call.count_overrun(await execute(call.finish(claims.claimed)))
        return result

    return run
