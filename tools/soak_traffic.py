"""Events of a soak, and the producer that keeps the pipeline busy.

An event is (producer, sequence number, payload, hash of the payload), made from a serial number alone, so that what
must arrive is known without asking. The producer sends as long as less than a set backlog is unread: the pipeline
always has more to read than it can, and the disk holds no more than that. What is settled in the ledger is
deleted from the topic a while later; what is not never is.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import polars as pl
import polars_hash
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "demo"))
from demo_events import (
    Serials,
    broken_messages,
    draw_serials,
    encode_columns,
    make_columns,
    open_producer,
    send,
)

TOPIC = "soak"
PARTITIONS = 4
PRODUCERS = 4
FIELDS = {
    "producer": "LowCardinality(String)",
    "sequence": "UInt64",
    "payload": "String",
    "payload_hash": "FixedString(16)",
}
IDENTITY = ("producer", "sequence")
# Deleting settled records frees the disk a segment at a time.
TOPIC_SETTINGS = {"segment.bytes": str(32 * 1024 * 1024)}

_BLOCK_EVENTS = 20_000
_POISON_A_BLOCK = 2
# As a service does that starts again: what it had sent long ago comes once more as a whole.
_RESENT_EVERY = 50
_FULL_PAUSE_SECONDS = 0.1
_FLUSH_SECONDS = 300.0


def make_events(serials: Serials) -> pa.Table:
    """The events as the table must hold them."""
    shop = make_columns(serials)
    payload = pc.binary_join_element_wise(
        shop["comment"], shop["user_name"], pa.array(serials).cast(pa.string()), " / "
    ).combine_chunks()
    return pa.table(
        {
            "producer": pc.binary_join_element_wise(
                "producer", pa.array(serials % PRODUCERS).cast(pa.string()), "-"
            ),
            "sequence": pa.array(serials // PRODUCERS, pa.uint64()),
            "payload": payload,
            "payload_hash": hash_payloads(payload),
        }
    )


def hash_payloads(payloads: pa.Array) -> pa.Array:
    """The first 64 bits of SHA-256 as text; ClickHouse computes the same."""
    frame = pl.DataFrame({"payload": pl.from_arrow(payloads)})
    hashed = frame.select(polars_hash.col("payload").chash.sha2_256()).to_series()
    return hashed.str.slice(0, 16).to_arrow().cast(pa.string())


class Producing:
    """Sends on a thread of its own until it is stopped."""

    def __init__(self, servers: str, *, seed: int, backlog: int, settled: Callable[[], int]) -> None:
        self._producer = open_producer(servers)
        self._rng = np.random.default_rng(seed)
        self._backlog = backlog
        self._settled = settled
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="producer", daemon=True)
        self.failure: BaseException | None = None
        self.offered = 0
        """Records given to the client, broken ones included."""
        self.kept = 0
        """Records that the broker has confirmed."""
        self.unique = 0
        self.broken = 0
        self._blocks = 0
        self._old_block: Serials = np.zeros(0, dtype=np.int64)

    @property
    def events(self) -> int:
        return self.offered - self.broken

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send what was offered, and demand that the broker has taken all of it."""
        self._stop.set()
        self._thread.join(_FLUSH_SECONDS)
        if self.failure is None and (self._thread.is_alive() or self.kept != self.offered):
            self.failure = RuntimeError(f"Kafka kept {self.kept} of {self.offered} records")

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                if self.offered - self._settled() < self._backlog:
                    self._send_block()
                else:
                    self._producer.poll(0)
                    time.sleep(_FULL_PAUSE_SECONDS)
            self._producer.flush(_FLUSH_SECONDS)
        except BaseException as error:  # noqa: BLE001 - a thread's edge: told by whoever looks at the run
            self.failure = error

    def _send_block(self) -> None:
        self._blocks += 1
        if self._blocks % _RESENT_EVERY == 0:
            serials = self._old_block
        else:
            serials = draw_serials(self._rng, _BLOCK_EVENTS, sent_before=self.unique)
        if self._blocks % _RESENT_EVERY == 1:
            self._old_block = serials
        poison = broken_messages(self.broken + _POISON_A_BLOCK)[self.broken :]
        messages = encode_columns(make_events(serials)) + poison
        self.unique = max(self.unique, int(serials.max()) + 1)
        self.broken += _POISON_A_BLOCK
        self.offered += len(messages)
        for partition in range(PARTITIONS):
            send(self._producer, TOPIC, messages[partition::PARTITIONS], partition, self._note)

    def _note(self, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self.kept += 1
        elif self.failure is None:
            self.failure = RuntimeError(f"Kafka refused a record: {error.str()}")


class Cleaning:
    """Deletes from the topic what the ledger had settled when it was last asked to."""

    def __init__(self, servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._settled: dict[tuple[str, int], int] = {}

    def clean(self, positions: Mapping[tuple[str, int], int]) -> None:
        old, self._settled = self._settled, dict(positions)
        wanted = [
            TopicPartition(topic, partition, offset) for (topic, partition), offset in old.items() if offset
        ]
        # Nobody waits: a broker that is away deletes them the next time.
        if wanted:
            self._admin.delete_records(wanted, request_timeout=5)
