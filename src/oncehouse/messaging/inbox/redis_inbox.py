"""`RedisInbox`: a cheaper memory of handled messages, in Redis, with a weaker promise than a database's.

A message is *claimed* for a short time, handled, and then noted as *done* for as long as is kept. Effects and note are
two things: a worker that dies between them, a handler slower than its claim, or a Redis that forgets makes a message
run twice. None is lost: only what ran to its end is noted, and what is claimed elsewhere is refused, not skipped.
"""

from __future__ import annotations

import functools
import inspect
import secrets
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
import redis.asyncio

from oncehouse.common import failpoints
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.inbox.ids import (
    NO_SOURCES,
    Identity,
    Sources,
    check_consumer,
    check_keep,
    check_sources,
)
from oncehouse.messaging.inbox.once import Counter, Counts, delivery_of
from oncehouse.messaging.message import Message

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

# One key a script, so that a cluster can run them wherever the key is. A claim is known by its random value.
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
# What 0.1 wrote is only read.
_KNOWN = """
return redis.call('GET', KEYS[1]) or ''
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
_DONE = b"done"


class RedisInbox:
    """Remembers in Redis. `client` is `redis.Redis` for plain handlers and `redis.asyncio.Redis` for async ones."""

    def __init__(self, client: redis.Redis | redis.asyncio.Redis, *, prefix: str = "oncehouse:inbox") -> None:
        self._client = client
        self._prefix = check_consumer(prefix, what="prefix")
        self._counter = Counter()
        self._lock = threading.Lock()
        self._overrun = 0

    @property
    def counts(self) -> dict[str, Counts]:
        """By consumer, since this process started."""
        return self._counter.read()

    @property
    def overrun(self) -> int:
        """Messages whose claim ran out before their handler ended: another may have handled them too."""
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

        `keep` is for how long a handled message is known. `claim` is how long one being handled is kept from others:
        longer than the handler ever takes. While another has it, TransientError says so: try again, commit nothing.
        `sources` names topics whose ids are those of another topic, such as {"orders-mirror": "orders"}.
        """
        check_consumer(consumer)
        once = _Once(
            consumer=consumer,
            prefix=f"{self._prefix}:{consumer}:",
            keep_ms=_milliseconds(check_keep(keep)),
            claim_ms=_milliseconds(check_keep(claim, what="claim")),
            counter=self._counter,
            overrun=self._count_overrun,
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
            wrapped: Any = wrap(self._client, once, handler)
            return wrapped  # type: ignore[no-any-return]

        return decorate


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Scripts, each run for one key."""

    calls: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Handle:
    argument: Message | list[Message]


Steps = Generator[Ask | Handle, Any, Any]


@dataclass(kw_only=True)
class _Once:
    """What is asked of Redis and of the handler, in order; it does neither by itself."""

    consumer: str
    prefix: str
    keep_ms: str
    claim_ms: str
    counter: Counter
    overrun: Callable[[int], None]
    sources: Sources

    def steps(self, given: Message | Iterable[Message]) -> Steps:
        delivery, mark = delivery_of(given, self.sources), secrets.token_hex(16)
        identities = {one.id: one for one in delivery.ids}
        ids = list(identities)
        try:
            mine = yield from self._claim(list(identities.values()), mark)
        except redis.RedisError as error:
            # Some may be claimed by now: given back, they need not wait until their claim runs out.
            with suppress(redis.RedisError):
                yield self._ask(_RELEASE, ids, mark)
            raise TransientError(
                f"Inbox of {self.consumer}: Redis does not answer ({error}); nothing was handled, try again"
            ) from error
        fresh = delivery.fresh(set(mine))
        self.counter.add(self.consumer, handled=len(fresh), repeated=len(delivery.messages) - len(fresh))
        if not fresh:
            return None
        failpoints.reach("redis_inbox.claimed")
        try:
            result = yield Handle(argument=delivery.argument(fresh))
        except BaseException:
            with suppress(redis.RedisError):  # the claim runs out by itself
                yield self._ask(_RELEASE, mine, mark)
            raise
        failpoints.reach("redis_inbox.handled")
        yield from self._finish(mine, mark)
        return result

    def _claim(self, ids: Sequence[Identity], mark: str) -> Generator[Ask, Any, list[str]]:
        old = [(one.id, known) for one in ids for known in {one.before, one.repeats} - {one.id}]
        calls = [(_CLAIM, one.id) for one in ids] + [(_KNOWN, known) for _, known in old]
        answers = yield self._calls(calls, mark, self.claim_ms)
        held = [answer.encode() if isinstance(answer, str) else answer for answer in answers]
        claimed = {one.id: by for one, by in zip(ids, held[: len(ids)], strict=True)}
        holders = {one: [by] if by else [] for one, by in claimed.items()}
        for (one, _), by in zip(old, held[len(ids) :], strict=True):
            holders[one] += [by] if by else []
        mine = [one for one, by in holders.items() if not by]
        busy = next((one for one, by in holders.items() if by and _DONE not in by), None)
        given_back = [one for one, by in claimed.items() if not by and (busy is not None or one not in mine)]
        if given_back:
            yield self._ask(_RELEASE, given_back, mark)
        if busy is not None:
            raise TransientError(
                f"Inbox of {self.consumer}: message {busy} is being handled elsewhere; try again, and commit nothing "
                "until then"
            )
        return mine

    def _finish(self, mine: Sequence[str], mark: str) -> Generator[Ask, Any, None]:
        # The effects are there, whatever Redis says now; that they may come again is what is not promised.
        with suppress(redis.RedisError):
            noted = yield self._ask(_FINISH, mine, mark, self.keep_ms)
            self.overrun(list(noted).count(0))

    def _ask(self, script: str, ids: Sequence[str], *arguments: str) -> Ask:
        return self._calls([(script, one) for one in ids], *arguments)

    def _calls(self, calls: Sequence[tuple[str, str]], *arguments: str) -> Ask:
        return Ask(calls=tuple((script, self.prefix + one) for script, one in calls), arguments=arguments)


def _fill(pipe: Any, ask: Ask) -> Any:
    for script, key in ask.calls:
        pipe.eval(script, 1, key, *ask.arguments)
    return pipe


def _wrap_plain(client: Any, once: _Once, handler: Callable[..., Any]) -> Any:
    def perform(step: Ask | Handle) -> Any:
        if isinstance(step, Handle):
            return handler(step.argument)
        return _fill(client.pipeline(transaction=False), step).execute()

    @functools.wraps(handler)
    def run(given: Message | Iterable[Message]) -> Any:
        steps = once.steps(given)
        go_on: Callable[[], Ask | Handle] = functools.partial(next, steps)
        with _returned() as returned:
            while True:
                step = go_on()
                try:
                    go_on = functools.partial(steps.send, perform(step))
                except BaseException as error:  # noqa: BLE001 - thrown into the steps, which let it out again
                    go_on = functools.partial(steps.throw, error)
        return returned[0]

    return run


def _wrap_async(client: Any, once: _Once, handler: Callable[..., Any]) -> Any:
    async def perform(step: Ask | Handle) -> Any:
        if isinstance(step, Handle):
            return await handler(step.argument)
        return await _fill(client.pipeline(transaction=False), step).execute()

    @functools.wraps(handler)
    async def run(given: Message | Iterable[Message]) -> Any:
        steps = once.steps(given)
        go_on: Callable[[], Ask | Handle] = functools.partial(next, steps)
        with _returned() as returned:
            while True:
                step = go_on()
                try:
                    go_on = functools.partial(steps.send, await perform(step))
                except BaseException as error:  # noqa: BLE001 - thrown into the steps, which let it out again
                    go_on = functools.partial(steps.throw, error)
        return returned[0]

    return run


@contextmanager
def _returned() -> Iterator[list[Any]]:
    """What the steps return when they are through."""
    returned: list[Any] = []
    try:
        yield returned
    except StopIteration as end:
        returned.append(end.value)
