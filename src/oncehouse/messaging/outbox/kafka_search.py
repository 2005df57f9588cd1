"""Where in Kafka a message stands: topics are read from a time until its id is met, and no further than a given end.

Kafka keeps no index by header, so this is a scan. It commits nothing and joins no group; what it did not get to see is
reported, so that "not found" is never taken for "not there".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage
from pydantic import SecretStr

from oncehouse.common.kafka_client import TIMEOUT_SECONDS, client_settings, describe_error
from oncehouse.errors import TransientError
from oncehouse.messaging.message import MESSAGE_ID

# A poll waits this long for a full lot of messages, also at the end of a topic.
_POLL_SECONDS = 0.1
_MESSAGES_A_POLL = 10_000


@dataclass(frozen=True, kw_only=True)
class KafkaPlace:
    topic: str
    partition: int
    offset: int
    timestamp: float | None
    """Seconds since 1970, as the record says."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    topics: tuple[str, ...]
    since: float
    places: tuple[KafkaPlace, ...]
    """In the order in which they were met; several where the message was sent more than once."""
    scanned: int
    stopped: str | None
    """Why the scan ended before the end of the topics; None: all was seen."""
    perhaps_deleted: bool = False
    """The topics hold nothing older than where the scan began: what Kafka has deleted was not seen."""


def locate(
    bootstrap_servers: str,
    options: Mapping[str, str | SecretStr],
    *,
    message_id: str,
    topics: Sequence[str],
    since: float,
    all_copies: bool = False,
    max_messages: int = 5_000_000,
    max_seconds: float = 30.0,
) -> Scan:
    """Raises TransientError when Kafka does not answer or does not know a topic."""
    settings = client_settings(bootstrap_servers, options) | {
        "group.id": "oncehouse-trace",  # required by the client, never joined: partitions are assigned by hand
        "enable.auto.commit": False,
        "enable.partition.eof": False,
        "isolation.level": "read_committed",
    }
    try:
        consumer = Consumer(settings)
        try:
            # A person waits for this: an absent broker is not waited for longer than the whole scan may take.
            timeout = min(TIMEOUT_SECONDS, max(1.0, max_seconds))
            ends, cut = _seek(consumer, topics, since, timeout)
            scan = _Scanner(message_id.encode(), ends, all_copies=all_copies)
            stopped = scan.run(consumer, max_messages=max_messages, until=time.monotonic() + max_seconds)
        finally:
            consumer.close()
    except KafkaException as error:
        raise TransientError(
            f"Kafka at {bootstrap_servers} does not let us look for the message ({describe_error(error)}). Check "
            "that the broker is up and that the topic exists."
        ) from error
    return Scan(
        topics=tuple(topics),
        since=since,
        places=tuple(scan.places),
        scanned=scan.scanned,
        stopped=stopped,
        perhaps_deleted=cut,
    )


def _seek(
    consumer: Consumer, topics: Sequence[str], since: float, timeout: float
) -> tuple[dict[tuple[str, int], int], bool]:
    """Assign what is to be read; gives the end of each partition that has anything, and whether some may have gone."""
    times = [
        TopicPartition(topic, partition, int(since * 1000))
        for topic, partition in _partitions(consumer, topics, timeout)
    ]
    starts, ends, cut = [], {}, False
    for start in consumer.offsets_for_times(times, timeout=timeout):
        low, end = consumer.get_watermark_offsets(start, timeout=timeout)
        if start.error:
            raise KafkaException(start.error)
        # No time before the first record that is left: those that went may have been of the time asked for.
        cut = cut or (low > 0 and start.offset in {low, OFFSET_END})
        if 0 <= start.offset < end:
            starts.append(start)
            ends[start.topic, start.partition] = end
    if starts:
        consumer.assign(starts)
    return ends, cut


def _partitions(consumer: Consumer, topics: Sequence[str], timeout: float) -> Iterator[tuple[str, int]]:
    for topic in topics:
        found = consumer.list_topics(topic, timeout=timeout).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        yield from ((topic, partition) for partition in found.partitions)


class _Scanner:
    def __init__(self, message_id: bytes, ends: dict[tuple[str, int], int], *, all_copies: bool) -> None:
        self.places: list[KafkaPlace] = []
        self.scanned = 0
        self._message_id = message_id
        self._ends = ends
        self._all_copies = all_copies

    def run(self, consumer: Consumer, *, max_messages: int, until: float) -> str | None:
        while self._ends:
            if self.scanned >= max_messages:
                return f"{self.scanned:,} messages were looked at, which is the limit"
            if time.monotonic() > until:
                return "the time for it was over"
            messages = consumer.consume(_MESSAGES_A_POLL, timeout=_POLL_SECONDS)
            for message in messages:
                self._inspect(message)
                if self.places and not self._all_copies:
                    return "the message was found"
            self._drop_finished(consumer)
        return None

    def _inspect(self, message: KafkaMessage) -> None:
        if message.error():
            raise KafkaException(message.error())
        self.scanned += 1
        headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
        if any(name == MESSAGE_ID and value == self._message_id for name, value in headers):
            kind, milliseconds = message.timestamp()
            self.places.append(
                KafkaPlace(
                    topic=message.topic() or "",
                    partition=message.partition() or 0,
                    offset=message.offset() or 0,
                    timestamp=milliseconds / 1000 if kind else None,
                )
            )

    def _drop_finished(self, consumer: Consumer) -> None:
        """By position and not by message: the last offsets may be markers of transactions, which consumers skip."""
        places = [TopicPartition(topic, partition) for topic, partition in self._ends]
        for position in consumer.position(places):
            if position.offset >= self._ends[position.topic, position.partition]:
                del self._ends[position.topic, position.partition]
