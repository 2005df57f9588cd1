"""`RetryTopics` and `DeadLetterTopic`: the failure policies of a consumer.

`retry_routing` decides the next topic of a message, `blocked_keys` which messages wait for order by key. A message is
diverted once the brokers have acknowledged it; a crash before the commit leads to a second copy, never to a lost one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from oncehouse.config.field_types import Seconds, check_topic
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.failure_policy import FailedMessage, OutgoingMessage, Partition, RetryBroker
from oncehouse.messaging.message import Message
from oncehouse.messaging.retries.blocked_keys import BlockedKeys
from oncehouse.messaging.retries.retry_routing import RetryRoute, due_at, route_failed

Order = Literal["none", "key"]

_MOST_LEVELS = 20
# Well within the week for which a retry topic keeps its messages, since a consumer may also be down for some time.
_LONGEST_SECONDS = 3 * 86_400.0


class RetryTopics:
    """Failed messages wait in `topic.retry.1` … `.n` and are retried; after the last retry they go to `topic.dlq`.

    `order="key"` keeps the messages of a key in order throughout: later ones wait for one that failed. `base` replaces
    the source's name in the names of the topics; consumer groups that read the same source need different ones, or each
    would retry the failed messages of the other.
    """

    def __init__(
        self,
        *,
        delays: Sequence[str | float] = ("10s", "1m", "10m"),
        order: Order = "none",
        base: str | None = None,
    ) -> None:
        if order not in {"none", "key"}:
            raise ConfigurationError(f'order is {order!r}; write "none" or "key"')
        if not delays:
            raise ConfigurationError(
                'delays are empty; name some, such as ["10s", "1m"], or use DeadLetterTopic'
            )
        self._delays = _read_delays(delays)
        self._order = order
        self._base = base
        self._sources: dict[str, _OrderedSource] = {}

    def open(self, source: str, broker: RetryBroker) -> None:
        route = make_retry_route(source, base=self._base, delays_seconds=self._delays)
        ensure_topics(route, broker, exactly=self._order == "key")
        self._sources[source] = _OrderedSource(route, broker)

    def topics(self, source: str) -> tuple[str, ...]:
        return make_retry_route(source, base=self._base, delays_seconds=self._delays).retry_topics

    def assigned(self, partitions: Collection[Partition]) -> None:
        if self._order == "key":
            for topic, number in partitions:
                self._source_of(topic).open_partition(topic, number)

    def revoked(self, partitions: Collection[Partition]) -> None:
        if self._order == "key":
            for topic, number in partitions:
                self._source_of(topic).close_partition(topic, number)

    def due_at(self, message: Message) -> float | None:
        return due_at(message, self._source_of(message.topic).route)

    def find_blocked(self, messages: Sequence[Message]) -> list[int]:
        if self._order == "none" or not messages:
            return []
        return self._source_of(messages[0].topic).find_blocked(messages)

    def divert(self, failures: Sequence[FailedMessage]) -> None:
        for topic, same in groupby(failures, key=lambda failure: failure.message.topic):
            source = self._source_of(topic)
            outgoing = [route_failed(failure, source.route) for failure in same]
            if self._order == "key":
                source.send_and_block(topic, outgoing)
            else:
                source.broker.send(outgoing)

    def committed(self, messages: Sequence[Message]) -> None:
        if self._order == "key":
            for topic, same in groupby(messages, key=lambda message: message.topic):
                self._source_of(topic).unblock(topic, same)

    def _source_of(self, topic: str) -> _OrderedSource:
        return next(source for source in self._sources.values() if topic in source.route.levels)


class DeadLetterTopic:
    """Failed messages go to `topic.dlq` (`base.dlq` if `base` is set); the consumer goes on with the others."""

    def __init__(self, *, base: str | None = None) -> None:
        self._base = base
        self._sources: dict[str, tuple[RetryRoute, RetryBroker]] = {}

    def open(self, source: str, broker: RetryBroker) -> None:
        route = make_retry_route(source, base=self._base)
        ensure_topics(route, broker, exactly=False)
        self._sources[source] = route, broker

    def topics(self, source: str) -> tuple[str, ...]:  # noqa: ARG002 - nothing comes back by itself
        return ()

    def assigned(self, partitions: Collection[Partition]) -> None:
        pass

    def revoked(self, partitions: Collection[Partition]) -> None:
        pass

    def due_at(self, message: Message) -> float | None:  # noqa: ARG002
        return None

    def find_blocked(self, messages: Sequence[Message]) -> list[int]:  # noqa: ARG002
        return []

    def divert(self, failures: Sequence[FailedMessage]) -> None:
        for topic, same in groupby(failures, key=lambda failure: failure.message.topic):
            route, broker = self._sources[topic]
            broker.send([route_failed(failure, route) for failure in same])

    def committed(self, messages: Sequence[Message]) -> None:
        pass


class _OrderedSource:
    """Order by key for one source: its topics, and which keys are blocked in the assigned partitions."""

    def __init__(self, route: RetryRoute, broker: RetryBroker) -> None:
        self.route, self.broker = route, broker
        self._blocked = BlockedKeys()

    def open_partition(self, topic: str, number: int) -> None:
        level = self.route.levels[topic]
        # Opened first: messages diverted or committed while the topics above are read must not be missed.
        self._blocked.open(number, level)
        for above, name in enumerate(self.route.retry_topics, start=1):
            if above > level:
                uncommitted = self.broker.read_uncommitted(name, number)
                self._blocked.block(number, ((key, above, offset) for offset, key in uncommitted))

    def close_partition(self, topic: str, number: int) -> None:
        self._blocked.close(number, self.route.levels[topic])

    def unblock(self, topic: str, messages: Iterable[Message]) -> None:
        self._blocked.unblock(messages, self.route.levels[topic])

    def find_blocked(self, messages: Sequence[Message]) -> list[int]:
        level, number = self.route.levels[messages[0].topic], messages[0].partition
        if not self._blocked.is_open(number, level):
            # Another consumer owns the partition by now; none of these may be tried here.
            return list(range(len(messages)))
        if level:
            # Messages that other producers wrote to a retry topic block the levels below it, too.
            self._blocked.block(number, ((one.key, level, one.offset) for one in messages))
        return self._blocked.find_blocked(number, level, messages)

    def send_and_block(self, topic: str, outgoing: Sequence[OutgoingMessage]) -> None:
        level = self.route.levels[topic]
        for number in {message.partition for message in outgoing}:
            if not self._blocked.is_open(number, level):
                raise TransientError(
                    f"{topic}/{number} is no longer assigned to this consumer; its owner will try the messages again"
                )
        for message, offset in zip(outgoing, self.broker.send(outgoing), strict=True):
            above = self.route.levels.get(message.topic)
            if above is not None:
                self._blocked.block(message.partition, [(message.key, above, offset)])


def make_retry_route(
    source: str, *, base: str | None = None, delays_seconds: tuple[float, ...] = ()
) -> RetryRoute:
    route = RetryRoute(source=source, base=base or source, delays_seconds=delays_seconds)
    try:
        for topic in (source, *route.retry_topics, route.dead_letters):
            check_topic(topic)
    except ValueError as error:
        raise ConfigurationError(f"retry topics of {source!a}: {error}") from None
    return route


def ensure_topics(route: RetryRoute, broker: RetryBroker, *, exactly: bool) -> None:
    """Create missing topics; refuse existing ones whose number of partitions does not match the source."""
    partitions = broker.count_partitions(route.source)
    if partitions is None:
        raise ConfigurationError(
            f"there is no topic {route.source}; create it first, its retry topics get as many partitions"
        )
    for topic in (*route.retry_topics, route.dead_letters):
        existing = broker.count_partitions(topic)
        if existing is None:
            broker.create(topic, partitions=partitions, source=route.source)
        elif existing < partitions or (existing > partitions and exactly and topic != route.dead_letters):
            raise ConfigurationError(
                f"topic {topic} has {existing} partitions, {route.source} has {partitions}; a message keeps its "
                f"partition number. {_advise(topic, existing, partitions)}"
            )
    _refuse_left_behind(route, broker)


def _refuse_left_behind(route: RetryRoute, broker: RetryBroker) -> None:
    """Refuse fewer delays than before while messages wait on the removed levels: no consumer would read them."""
    level = len(route.delays_seconds) + 1
    while (partitions := broker.count_partitions(topic := f"{route.base}.retry.{level}")) is not None:
        if any(True for number in range(partitions) for _ in broker.read_uncommitted(topic, number)):
            raise ConfigurationError(
                f"topic {topic} holds messages that no consumer would read with {level - 1} delays; keep the former "
                "number of delays until they are handled, or delete the topic"
            )
        level += 1


def _advise(topic: str, existing: int, partitions: int) -> str:
    if existing < partitions:
        return f"Run: kafka-topics.sh --alter --topic {topic} --partitions {partitions}"
    return "Delete the topic once it is empty and start again: it will be created with the right number"


def _read_delays(delays: Sequence[str | float]) -> tuple[float, ...]:
    if len(delays) > _MOST_LEVELS:
        raise ConfigurationError(
            f"{len(delays)} delays would need as many topics; use at most {_MOST_LEVELS}"
        )
    try:
        seconds = TypeAdapter(tuple[Seconds, ...]).validate_python(tuple(delays))
    except ValidationError as error:
        raise ConfigurationError(
            f"delays: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from None
    if max(seconds) > _LONGEST_SECONDS:
        raise ConfigurationError(
            "delays: a retry topic keeps its messages for a week, so a delay is at most 3 days; use a scheduler "
            "or a database for longer ones"
        )
    return seconds
