"""Kafka's OffsetsForLeaderEpoch, which the client has no call for: where the records of a leader epoch end.

librdkafka asks it for a consumer that is assigned an offset with a leader epoch, and refuses the offset where the log
ends before it. Offsets are assigned here that no log reaches, so every answer is a refusal, whose text holds what the
broker said. No record is read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

Place = tuple[str, int]

_BEYOND_ALL = 1 << 62
_ANSWER = re.compile(r"broker end offset is (-?\d+) \(offset leader epoch (-?\d+)\)")
_POLL_SECONDS = 0.5
_TRIES = 3
_RETRIED = {KafkaError._AUTO_OFFSET_RESET}  # noqa: SLF001 - the client's own code
"""The client asked for the offset, and not for the leader epoch."""
# Nothing is fetched. A user's `fetch.max.bytes`, which Spark's source takes, may be less than librdkafka accepts.
_FETCHING = ("fetch.", "max.", "message.", "queued.", "receive.")


@dataclass(frozen=True, kw_only=True)
class EpochEnd:
    """What the leader says to a leader epoch; both are -1 where it knows none that is as old."""

    epoch: int
    """The last one up to the one that was asked for."""
    end: int
    """The offset behind its last record."""

    def holds(self, leader_epoch: int | None, offset: int) -> bool:
        """Whether the log has what was read up to this offset, of which the last was written under this epoch."""
        return self.epoch == leader_epoch and self.reaches(offset)

    def reaches(self, offset: int) -> bool:
        """All that can be asked for where the epoch may be one that no record was written under (KIP-320)."""
        return self.end >= offset


class Unanswered(KafkaException):
    """Kafka did not say where a leader epoch ends; it wraps the client's error as its parent does."""

    def __init__(self, place: Place, error: KafkaError) -> None:
        super().__init__(error)
        self.place = place


def ask_epoch_ends(
    settings: Mapping[str, Any], epochs: Mapping[Place, int], *, group: str, timeout_seconds: float
) -> dict[Place, EpochEnd]:
    """Where the records of a leader epoch end, of each partition. Raises Unanswered where one is not answered.

    `group` is one that the user may read. No client joins it, but the client asks who coordinates it.
    """
    found: dict[Place, EpochEnd] = {}
    for tries_left in reversed(range(_TRIES)):
        left = {place: epoch for place, epoch in epochs.items() if place not in found}
        if not left:
            break
        # The client asks when it learns of the leaders, so each time it is one that does not know them yet.
        for place, answer in receive_epoch_ends(settings, left, group=group, timeout_seconds=timeout_seconds):
            if isinstance(answer, EpochEnd):
                found[place] = answer
            elif not tries_left or answer.code() not in _RETRIED:
                raise Unanswered(place, answer)
    return found


def receive_epoch_ends(
    settings: Mapping[str, Any],
    epochs: Mapping[Place, int],
    *,
    group: str,
    timeout_seconds: float,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Place, EpochEnd | KafkaError]]:
    """Each partition's answer as it comes, or why there is none; nothing for those that are left after `stop`."""
    left = dict(epochs)
    consumer = Consumer(
        {
            **{name: value for name, value in settings.items() if not name.startswith(_FETCHING)},
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign(
            [TopicPartition(*place, _BEYOND_ALL, leader_epoch=epoch) for place, epoch in epochs.items()]
        )
        deadline = time.monotonic() + timeout_seconds
        while left and time.monotonic() <= deadline and not stop():
            message = consumer.poll(_POLL_SECONDS)
            for place, answer in _sort_out(message, left) if message is not None else ():
                del left[place]
                yield place, answer
    finally:
        consumer.close()
    if not stop():
        timed_out = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 - the client's own code
        yield from ((place, timed_out) for place in left)


def _sort_out(message: Message, left: Mapping[Place, int]) -> list[tuple[Place, EpochEnd | KafkaError]]:
    """Errors of brokers and of the group's coordinator are no answer: leaders may answer all the same."""
    error, topic, partition = message.error(), message.topic(), message.partition()
    if error is None:
        return []
    places = [
        place for place in left if place[0] == topic and (partition is None or partition in {-1, place[1]})
    ]
    if answer := _ANSWER.search(error.str()):
        return [(place, EpochEnd(end=int(answer[1]), epoch=int(answer[2]))) for place in places]
    if error.code() in _RETRIED or not error.retriable():
        return [(place, error) for place in places]
    return []
