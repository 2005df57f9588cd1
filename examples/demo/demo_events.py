"""Events for the demo and the benchmarks: shop events of about 200 bytes, a tenth of them sent more than once.

Deterministic: the same plan gives the same bytes, so that what must be in ClickHouse at the end is known without
asking anything that the pipeline wrote. An event is made from its serial number alone, column-wise in Arrow;
a duplicate is a serial number that comes again: a moment later, far later, or in the slice sent after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oncehouse.errors import TransientError

Serials = npt.NDArray[np.int64]

FIELDS = {
    "project": "LowCardinality(String)",
    "event_type": "LowCardinality(String)",
    "product_id": "UInt64",
    "created_at": "DateTime64(3, 'UTC')",
    "price": "Decimal(18, 2)",
    "user_name": "String",
    "comment": "String",
}
IDENTITY = ("project", "event_type", "product_id")

_NEAR_SHARE = 0.04
_FAR_SHARE = 0.04
_RESENT_SHARE = 0.02
_NEAR_DISTANCE = 200
_FIRST_EVENT_MS = 1_767_225_600_000
_EVENT_TYPES = ("view", "click", "basket", "order")
_COMMENTS = tuple(
    f"{mood} {thing}, {verdict}; number {number:02d} of what people say"
    for number, (mood, thing, verdict) in enumerate(
        (mood, thing, verdict)
        for mood in ("lovely", "plain", "sturdy")
        for thing in ("teapot", "lamp", "carpet", "chair")
        for verdict in ("would buy again", "came late", "a gift for her")
    )
)
_BROKEN = (
    b"not json at all",
    b'{"project":"shop-1","event_type":"view","product_id":12',
    b'{"project":"shop-1","event_type":"view","created_at":"2026-01-01T00:00:00.000Z"}',
    b'{"project":"shop-1","event_type":"view","product_id":"many","created_at":"2026-01-01T00:00:00Z","price":"1"}',
    b'["project","event_type"]',
    b'{"project":"shop-1"}{"project":"shop-2"}',
    b"\xff\xfe\x00",
)
_BLOCK_EVENTS = 20_000
_LEAST_BLOCKS = 50
_FLUSH_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class DemoTraffic:
    """Serial numbers in the order in which they are sent, and how many broken records go between them."""

    first: Serials
    resent: Serials
    unique: int
    broken: int

    @property
    def produced(self) -> int:
        return len(self.first) + len(self.resent) + self.broken

    @property
    def duplicates(self) -> int:
        return len(self.first) + len(self.resent) - self.unique


def plan_traffic(
    events: int, *, broken: int = 0, resent_share: float = _RESENT_SHARE, seed: int = 7
) -> DemoTraffic:
    """`events` events, duplicates included; the re-sent slice is the beginning of the traffic."""
    resent = int(events * resent_share)
    count = events - resent
    serials = draw_serials(np.random.default_rng(seed), count)
    return DemoTraffic(
        first=serials, resent=serials[:resent], unique=int(serials.max(initial=-1)) + 1, broken=broken
    )


def draw_serials(rng: np.random.Generator, count: int, *, sent_before: int = 0) -> Serials:
    """The next `count` serial numbers after those below `sent_before`: new ones in order, repeats between them."""
    kind = rng.random(count)
    if not sent_before:
        kind[:1] = 1.0  # nothing came before the first event that it could repeat
    fresh = kind >= _NEAR_SHARE + _FAR_SHARE
    newest = sent_before + np.cumsum(fresh) - 1
    near = np.maximum(newest - rng.integers(0, _NEAR_DISTANCE, count), 0)
    far = (rng.random(count) * newest).astype(np.int64)
    return np.where(fresh, newest, np.where(kind < _NEAR_SHARE, near, far))


def make_columns(serials: Serials) -> pa.Table:
    """The events as the destination table must hold them."""
    cents = serials * 7919 % 1_000_000
    created = pa.array(_FIRST_EVENT_MS + serials * 37, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    return pa.table(
        {
            "project": pc.binary_join_element_wise("shop", _text(serials % 5), "-"),
            "event_type": pa.array(_EVENT_TYPES).take(pa.array(serials % len(_EVENT_TYPES))),
            "product_id": pa.array(serials, pa.uint64()),
            "created_at": created,
            "price": _price(cents).cast(pa.decimal128(18, 2)),
            "user_name": pc.binary_join_element_wise("user", _text(serials * 31 % 50_000), "-"),
            "comment": pa.array(_COMMENTS).take(pa.array(serials % len(_COMMENTS))),
        }
    )


def make_messages(serials: Serials) -> list[bytes]:
    """The same events as JSON, one a message."""
    return encode_columns(make_columns(serials))


def encode_columns(columns: pa.Table) -> list[bytes]:
    """Rows as JSON objects; texts must hold nothing that JSON would escape."""
    pieces: list[Any] = []
    for number, name in enumerate(columns.column_names):
        column = columns[name].combine_chunks()
        if pa.types.is_timestamp(column.type):
            column = _iso(column)
        quotes = "" if pa.types.is_integer(column.type) else '"'
        pieces += [f'{"," if number else "{"}"{name}":{quotes}', column.cast(pa.string()), quotes]
    joined = pc.binary_join_element_wise(*pieces, "}", "")
    messages: list[bytes] = joined.cast(pa.binary()).to_pylist()
    return messages


def _text(numbers: Serials) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _price(cents: Serials) -> pa.Array:
    return pc.binary_join_element_wise(_text(cents // 100), pc.utf8_lpad(_text(cents % 100), 2, "0"), ".")


def _iso(moments: pa.Array) -> pa.Array:
    # Several times as fast as strftime, which looks the zone up for every value.
    spaced = moments.cast(pa.timestamp("ms")).cast(pa.string())
    return pc.binary_join_element_wise(pc.utf8_replace_slice(spaced, 10, 11, "T"), "Z", "")


def broken_messages(count: int) -> list[bytes]:
    return [_BROKEN[number % len(_BROKEN)] for number in range(count)]


def make_topic(
    bootstrap_servers: str, topic: str, *, partitions: int, settings: dict[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings or {})
    admin.create_topics([new])[topic].result(30)


def produce(
    bootstrap_servers: str, topic: str, serials: Serials, *, partitions: int, broken: int = 0
) -> None:
    """Send the events spread over the partitions, the broken records between them; return when all are kept."""
    producer = open_producer(bootstrap_servers)
    failures: list[str] = []

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error.str())

    for messages in _blocks(serials, broken):
        for partition in range(partitions):
            send(producer, topic, messages[partition::partitions], partition, note)
    left = producer.flush(_FLUSH_SECONDS)
    if left or failures:
        reason = failures[0] if failures else f"no answer for {left} of them"
        raise TransientError(
            f"Kafka at {bootstrap_servers} did not take all events for {topic} ({reason}). Try again."
        )


def open_producer(bootstrap_servers: str) -> Producer:
    """One that repeats nothing by itself, however often it has to try."""
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 400_000,
            "log_level": 0,
        }
    )


def _blocks(serials: Serials, broken: int) -> Iterator[list[bytes]]:
    size = max(1, min(_BLOCK_EVENTS, len(serials) // _LEAST_BLOCKS))
    starts = range(0, len(serials), size)
    bad = broken_messages(broken)
    for number, start in enumerate(starts):
        yield make_messages(serials[start : start + size]) + bad[number :: len(starts)]


def send(producer: Producer, topic: str, messages: list[bytes], partition: int, note: Any) -> None:
    """Offer all of them to the producer, in order, waiting while its queue is full."""
    waiting = [{"value": message} for message in messages]
    while waiting:
        producer.poll(0)
        try:
            producer.produce_batch(topic, waiting, partition=partition, on_delivery=note)
        except BufferError:
            pass
        else:
            # What did not fit into the queue is marked and must be offered again, in order.
            waiting = [{"value": message["value"]} for message in waiting if "_error" in message]
        if waiting:
            producer.poll(0.05)
