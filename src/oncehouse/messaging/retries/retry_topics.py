"""`DeadLetterTopic` and `RetryTopics`: what a consumer does with messages that its handler could not take.

Both decide by `ladder` and `held_keys` and write through the consumer's shelf. A message counts as put aside only when
the brokers have it; a crash in between leads to a second copy, never to a lost one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from oncehouse.config.field_types import Seconds, check_topic
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.failure_policy import Failure, Partition, Placement, Shelf
from oncehouse.messaging.message import Message
from oncehouse.messaging.retries.blocked_keys import HeldKeys
from oncehouse.messaging.retries.retry_routing import Ladder, decide, due_at

Order = Literal["none", "key"]

_MOST_LEVELS = 20
# Well within the week for which a retry topic keeps its messages: a consumer may be down for a while, too.
_LONGEST_SECONDS = 3 * 86_400.0


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
            for topic, number in partitions:
                self._source_of(topic).take(topic, number)

    def revoked(self, partitions: Collection[Partition]) -> None:
        if self._order == "key":
            for topic, number in partitions:
                self._source_of(topic).leave(topic, number)

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
                self._source_of(topic).settle(topic, same)

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
        self._held = HeldKeys()

    def take(self, topic: str, number: int) -> None:
        level = self.ladder.levels[topic]
        # Opened first: what is put aside or settled while the topics above are read must not be missed.
        self._held.open(number, level)
        for above, name in enumerate(self.ladder.retry_topics, start=1):
            if above > level:
                standing = self.shelf.unsettled(name, number)
                self._held.hold(number, ((key, above, offset) for offset, key in standing))

    def leave(self, topic: str, number: int) -> None:
        self._held.close(number, self.ladder.levels[topic])

    def settle(self, topic: str, messages: Iterable[Message]) -> None:
        self._held.release(messages, self.ladder.levels[topic])

    def behind(self, messages: Sequence[Message]) -> list[int]:
        level, number = self.ladder.levels[messages[0].topic], messages[0].partition
        if not self._held.is_open(number, level):
            # Somebody else decides about these by now; none of them may be tried here.
            return list(range(len(messages)))
        if level:
            # Also what another hand has written into a retry topic holds up the levels below it.
            self._held.hold(number, ((one.key, level, one.offset) for one in messages))
        return self._held.behind(number, level, messages)

    def send_and_hold(self, topic: str, placements: Sequence[Placement]) -> None:
        level = self.ladder.levels[topic]
        for number in {placement.partition for placement in placements}:
            if not self._held.is_open(number, level):
                raise TransientError(
                    f"{topic}/{number} is no longer ours; whoever reads it now tries its messages again"
                )
        for placement, offset in zip(placements, self.shelf.send(placements), strict=True):
            above = self.ladder.levels.get(placement.topic)
            if above is not None:
                self._held.hold(placement.partition, [(placement.key, above, offset)])


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
    _refuse_left_behind(ladder, shelf)


def _refuse_left_behind(ladder: Ladder, shelf: Shelf) -> None:
    """Levels that were taken out of the delays while messages stand on them: nobody would ever read those."""
    level = len(ladder.delays_seconds) + 1
    while (partitions := shelf.count_partitions(topic := f"{ladder.base}.retry.{level}")) is not None:
        if any(True for number in range(partitions) for _ in shelf.unsettled(topic, number)):
            raise ConfigurationError(
                f"topic {topic} holds messages that nobody would read with {level - 1} delays; keep as many as before "
                "until they are through, or delete the topic"
            )
        level += 1


def _advise(topic: str, found: int, partitions: int) -> str:
    if found < partitions:
        return f"Run: kafka-topics.sh --alter --topic {topic} --partitions {partitions}"
    return "Delete the topic once it is empty and start again: it is made anew with the right number"


def _read_delays(delays: Sequence[str | float]) -> tuple[float, ...]:
    if len(delays) > _MOST_LEVELS:
        raise ConfigurationError(f"{len(delays)} delays make as many topics; use at most {_MOST_LEVELS}")
    try:
        seconds = TypeAdapter(tuple[Seconds, ...]).validate_python(tuple(delays))
    except ValidationError as error:
        raise ConfigurationError(
            f"delays: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from None
    if max(seconds) > _LONGEST_SECONDS:
        raise ConfigurationError(
            "delays: a retry topic keeps its messages for a week, so a delay may have 3 days at most; use a scheduler "
            "or a database for longer ones"
        )
    return seconds
