"""`DeadLetterTopic` and `RetryTopics`: what a consumer does with messages that its handler could not take.

Both decide by `ladder` and `held_keys` and write through the consumer's shelf. A message counts as put aside only when
the brokers have it; a crash in between leads to a second copy, never to a lost one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from oncehouse.config_values import Seconds, check_topic
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.aside import Failure, Partition, Placement, Shelf
from oncehouse.messaging.message import Message
from oncehouse.messaging.retries.held_keys import HeldKeys
from oncehouse.messaging.retries.ladder import Ladder, decide, due_at

Order = Literal["none", "key"]

_MOST_LEVELS = 20


class RetryTopics:
    """Failed messages wait in `topic.retry.1` … `.n` and are tried again; at last they go to `topic.dlq`.

    `order="key"` keeps the messages of a key in order through all of it: later ones wait behind one that failed.
    `base` replaces the source's name in the names of the topics; consumer groups that read the same source need
    different ones, or each would retry the other's failures.
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
        self._sources: dict[str, _Source] = {}

    def open(self, source: str, shelf: Shelf) -> None:
        ladder = make_ladder(source, base=self._base, delays_seconds=self._delays)
        ensure_topics(ladder, shelf, exactly=self._order == "key")
        self._sources[source] = _Source(ladder, shelf)

    def topics(self, source: str) -> tuple[str, ...]:
        return make_ladder(source, base=self._base, delays_seconds=self._delays).retry_topics

    def assigned(self, partitions: Collection[Partition]) -> None:
        if self._order == "key":
            for source in self._sources.values():
                source.take(partitions)

    def revoked(self, partitions: Collection[Partition]) -> None:
        if self._order == "key":
            for source in self._sources.values():
                source.leave(partitions)

    def due_at(self, message: Message) -> float | None:
        return due_at(message, self._source_of(message.topic).ladder)

    def behind(self, messages: Sequence[Message]) -> list[int]:
        if self._order == "none" or not messages:
            return []
        return self._source_of(messages[0].topic).behind(messages)

    def put(self, failures: Sequence[Failure]) -> None:
        for topic, same in groupby(failures, key=lambda failure: failure.message.topic):
            source = self._source_of(topic)
            placements = [decide(failure, source.ladder) for failure in same]
            if self._order == "key":
                source.send_and_hold(topic, placements)
            else:
                source.shelf.send(placements)

    def settled(self, messages: Sequence[Message]) -> None:
        if self._order == "key":
            for topic, same in groupby(messages, key=lambda message: message.topic):
                source = self._source_of(topic)
                source.held.release(same, source.ladder.levels[topic])

    def _source_of(self, topic: str) -> _Source:
        return next(source for source in self._sources.values() if topic in source.ladder.levels)


class DeadLetterTopic:
    """Failed messages go to `topic.dlq` (`base.dlq` where `base` is given), and the others go on at once."""

    def __init__(self, *, base: str | None = None) -> None:
        self._base = base
        self._sources: dict[str, tuple[Ladder, Shelf]] = {}

    def open(self, source: str, shelf: Shelf) -> None:
        ladder = make_ladder(source, base=self._base)
        ensure_topics(ladder, shelf, exactly=False)
        self._sources[source] = ladder, shelf

    def topics(self, source: str) -> tuple[str, ...]:  # noqa: ARG002 - nothing comes back by itself
        return ()

    def assigned(self, partitions: Collection[Partition]) -> None:
        pass

    def revoked(self, partitions: Collection[Partition]) -> None:
        pass

    def due_at(self, message: Message) -> float | None:  # noqa: ARG002
        return None

    def behind(self, messages: Sequence[Message]) -> list[int]:  # noqa: ARG002
        return []

    def put(self, failures: Sequence[Failure]) -> None:
        for topic, same in groupby(failures, key=lambda failure: failure.message.topic):
            ladder, shelf = self._sources[topic]
            shelf.send([decide(failure, ladder) for failure in same])

    def settled(self, messages: Sequence[Message]) -> None:
        pass


class _Source:
    """What order by key needs to know about one source: its topics, and which keys wait in our partitions."""

    def __init__(self, ladder: Ladder, shelf: Shelf) -> None:
        self.ladder, self.shelf = ladder, shelf
        self.held = HeldKeys()
        self._ours: set[Partition] = set()

    def take(self, partitions: Collection[Partition]) -> None:
        new = {(topic, number) for topic, number in partitions if topic in self.ladder.levels}
        self._ours |= new
        for number in sorted({number for _, number in new}):
            _demand_together(self.ladder, number, self._ours)
            for topic in self.ladder.retry_topics:
                level = self.ladder.levels[topic]
                standing = self.shelf.unsettled(topic, number)
                self.held.hold(number, ((key, level, offset) for offset, key in standing))

    def leave(self, partitions: Collection[Partition]) -> None:
        gone = {(topic, number) for topic, number in partitions if topic in self.ladder.levels}
        self._ours -= gone
        for _, number in gone:
            self.held.forget(number)

    def behind(self, messages: Sequence[Message]) -> list[int]:
        level = self.ladder.levels[messages[0].topic]
        if (messages[0].topic, messages[0].partition) not in self._ours:
            # Somebody else decides about these by now; none of them may be tried here.
            return list(range(len(messages)))
        if level:
            # Also what another hand has written into a retry topic holds up the levels below it.
            self.held.hold(messages[0].partition, ((one.key, level, one.offset) for one in messages))
        return self.held.behind(messages, level)

    def send_and_hold(self, topic: str, placements: Sequence[Placement]) -> None:
        gone = next((one.partition for one in placements if (topic, one.partition) not in self._ours), None)
        if gone is not None:
            raise TransientError(
                f"{topic}/{gone} is no longer ours; whoever reads it now tries its messages again"
            )
        for placement, offset in zip(placements, self.shelf.send(placements), strict=True):
            level = self.ladder.levels.get(placement.topic)
            if level is not None:
                self.held.hold(placement.partition, [(placement.key, level, offset)])


def make_ladder(source: str, *, base: str | None = None, delays_seconds: tuple[float, ...] = ()) -> Ladder:
    ladder = Ladder(source=source, base=base or source, delays_seconds=delays_seconds)
    try:
        for topic in (source, *ladder.retry_topics, ladder.dead_letters):
            check_topic(topic)
    except ValueError as error:
        raise ConfigurationError(f"retry topics of {source!a}: {error}") from None
    return ladder


def ensure_topics(ladder: Ladder, shelf: Shelf, *, exactly: bool) -> None:
    """Make the topics that are missing; refuse those whose partitions do not fit the source's."""
    partitions = shelf.count_partitions(ladder.source)
    if partitions is None:
        raise ConfigurationError(
            f"there is no topic {ladder.source}; create it first, its retry topics get as many partitions"
        )
    for topic in (*ladder.retry_topics, ladder.dead_letters):
        found = shelf.count_partitions(topic)
        if found is None:
            shelf.create(topic, partitions=partitions, source=ladder.source)
        elif found < partitions or (found > partitions and exactly and topic != ladder.dead_letters):
            raise ConfigurationError(
                f"topic {topic} has {found} partitions, {ladder.source} has {partitions}; a message keeps its "
                f"partition number. {_advise(topic, found, partitions)}"
            )


def _advise(topic: str, found: int, partitions: int) -> str:
    if found < partitions:
        return f"Run: kafka-topics.sh --alter --topic {topic} --partitions {partitions}"
    return "Delete the topic once it is empty and start again: it is made anew with the right number"


def _demand_together(ladder: Ladder, number: int, ours: Collection[Partition]) -> None:
    missing = [topic for topic in ladder.levels if (topic, number) not in ours]
    if missing:
        raise ConfigurationError(
            f'partition {number} of {missing[0]} went to another consumer than its sisters; order="key" needs them '
            "together: set partition.assignment.strategy to range, and let all consumers of the group read the same "
            "topics with the same delays"
        )


def _read_delays(delays: Sequence[str | float]) -> tuple[float, ...]:
    if len(delays) > _MOST_LEVELS:
        raise ConfigurationError(f"{len(delays)} delays make as many topics; use at most {_MOST_LEVELS}")
    try:
        return TypeAdapter(tuple[Seconds, ...]).validate_python(tuple(delays))
    except ValidationError as error:
        raise ConfigurationError(
            f"delays: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from None
