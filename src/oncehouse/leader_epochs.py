"""Kafka's OffsetsForLeaderEpoch, which the client has no call for: where the records of a leader epoch end.

librdkafka asks it for a consumer that is assigned an offset with a leader epoch, and refuses the offset where the log
ends before it. Offsets are assigned here that no log reaches, so every answer is a refusal, whose text holds what the
broker said. No record is read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

Place = tuple[str, int]

_BEYOND_ALL = 1 << 62
_ANSWER = re.compile(r"broker end offset is (-?\d+) \(offset leader epoch (-?\d+)\)")
_POLL_SECONDS = 0.5
_TRIES = 3
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
        return self.epoch == leader_epoch and self.end >= offset


def ask_epoch_ends(
    settings: Mapping[str, Any], asked: Mapping[Place, int], *, timeout_seconds: float
) -> dict[Place, EpochEnd]:
    """Where the records of a leader epoch end, of each partition. Raises KafkaException where one is not answered."""
    found: dict[Place, EpochEnd] = {}
    for tries_left in reversed(range(_TRIES)):
        left = {place: epoch for place, epoch in asked.items() if place not in found}
        if not left:
            break
        # The client asks when it learns of the leaders, so each time it is one that does not know them yet.
        refused = _ask(settings, left, found, timeout_seconds)
        if refused is not None and not tries_left:
            raise KafkaException(refused)
    return found


def _ask(
    settings: Mapping[str, Any],
    asked: Mapping[Place, int],
    found: dict[Place, EpochEnd],
    timeout_seconds: float,
) -> KafkaError | None:
    """Adds what is answered; gives back the last error of those for which the client asked for the offset instead."""
    refused: dict[Place, KafkaError] = {}
    consumer = Consumer(
        {
            **{name: value for name, value in settings.items() if not name.startswith(_FETCHING)},
            "group.id": "oncehouse-leader-epochs",  # required by the client; the consumer joins no group
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign(
            [TopicPartition(*place, _BEYOND_ALL, leader_epoch=epoch) for place, epoch in asked.items()]
        )
        deadline = time.monotonic() + timeout_seconds
        while any(place not in found and place not in refused for place in asked):
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - the client's own code
            message = consumer.poll(_POLL_SECONDS)
            if message is not None:
                _sort_in(message, found, refused)
    finally:
        consumer.close()
    return next(iter(refused.values()), None)


def _sort_in(message: Message, found: dict[Place, EpochEnd], refused: dict[Place, KafkaError]) -> None:
    error, place = message.error(), (message.topic() or "", message.partition() or 0)
    if error is None:
        return
    if answer := _ANSWER.search(error.str()):
        found[place] = EpochEnd(end=int(answer[1]), epoch=int(answer[2]))
    elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the client's own code
        refused[place] = error
    elif not error.retriable():
        raise KafkaException(error)
