"""Topics to measure with: shop events as JSON, protobuf or Avro, of 200 bytes or 1.6 kB, with so many duplicates.

An event is made from its serial number alone, as in the demo, so what must arrive is known. A duplicate is a serial
number that comes again: half of them a moment later, half of them anywhere after.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from demo_traffic import (
    FIELDS,
    Serials,
    encode_columns,
    make_columns,
    make_topic,
    open_producer,
    send,
)
from oncehouse.config.formats import Avro
from oncehouse.config.pipeline import Kafka, Source
from oncehouse.config.protobuf import Protobuf, ProtobufSchema

Format = Literal["json", "protobuf", "avro"]

PARTITIONS = 4
DUPLICATES = 0.1

_NEAR_DISTANCE = 200
_BLOCK = 20_000
_FLUSH_SECONDS = 300
_LONG_TEXTS = 997
_LONG_BYTES = 1_400
_PROTO = """
syntax = "proto3";
package bench;
import "google/protobuf/timestamp.proto";
message Event {
  string project = 1; string event_type = 2; uint64 product_id = 3; google.protobuf.Timestamp created_at = 4;
  string price = 5; string user_name = 6; string comment = 7;
}
"""
_AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "project", "type": "string"},
        {"name": "event_type", "type": "string"},
        {"name": "product_id", "type": "long"},
        {"name": "created_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}},
        {"name": "user_name", "type": "string"},
        {"name": "comment", "type": "string"},
    ],
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the events of a topic are like."""

    format: Format = "json"
    large: bool = False
    duplicates: float = DUPLICATES

    @property
    def name(self) -> str:
        return f"{self.format}_{'1600' if self.large else '200'}_{self.duplicates * 100:.0f}"

    @property
    def label(self) -> str:
        return f"{self.format}, {'1.6 kB' if self.large else '200 bytes'}, {self.duplicates:.0%} duplicates".replace(
            "%", " %"
        )


USUAL = Kind()


def plan_serials(events: int, duplicates: float, *, seed: int = 7) -> Serials:
    """Serial numbers in the order in which they are sent: new ones counting up, and repeats between them."""
    rng = np.random.default_rng(seed)
    kind = rng.random(events)
    kind[:1] = 1.0  # nothing came before the first event that it could repeat
    fresh = kind >= duplicates
    newest = np.cumsum(fresh) - 1
    near = np.maximum(newest - rng.integers(0, _NEAR_DISTANCE, events), 0)
    far = (rng.random(events) * newest).astype(np.int64)
    return np.where(fresh, newest, np.where(kind < duplicates / 2, near, far))


def make_encoder(kind: Kind) -> Callable[[Serials], list[bytes]]:
    encode = {"json": encode_columns, "protobuf": _encode_protobuf, "avro": _encode_avro}[kind.format]
    return lambda serials: encode(make_events(serials, large=kind.large))


def make_source(kind: Kind, servers: str, topic: str, folder: Path) -> Source:
    """What a pipeline says about such a topic; `folder` is for the schema's file."""
    kafka = Kafka(bootstrap_servers=servers, topics=(topic,))
    folder.mkdir(parents=True, exist_ok=True)
    if kind.format == "protobuf":
        file = folder / "event.proto"
        file.write_text(_PROTO)
        schemas = {"1": ProtobufSchema(files=(str(file),))}
        section = Protobuf(message="bench.Event", schemas=schemas)
        return Source(kafka=kafka, format="protobuf", fields=FIELDS, protobuf=section)
    if kind.format == "avro":
        file = folder / "event.avsc"
        file.write_text(json.dumps(_AVRO))
        return Source(
            kafka=kafka,
            format="avro",
            fields=FIELDS,
            avro=Avro(version="none", schemas={"1": str(file)}),
        )
    return Source(kafka=kafka, fields=FIELDS)


def produce(servers: str, topic: str, kind: Kind, serials: Serials) -> int:
    """Fill a new topic; returns the bytes of all values. Raises when Kafka did not take them all."""
    make_topic(servers, topic, partitions=PARTITIONS)
    producer, encode = open_producer(servers), make_encoder(kind)
    failures: list[str] = []
    total = 0

    def note(error: Any, _message: object) -> None:
        if error is not None:
            failures.append(error.str())

    for start in range(0, len(serials), _BLOCK):
        messages = encode(serials[start : start + _BLOCK])
        total += sum(map(len, messages))
        for partition in range(PARTITIONS):
            send(producer, topic, messages[partition::PARTITIONS], partition, note)
    if producer.flush(_FLUSH_SECONDS) or failures:
        raise SystemExit(f"No figures: Kafka did not take all events for {topic} {failures[:1]}")
    return total


def make_events(serials: Serials, *, large: bool) -> pa.Table:
    """The events as the destination table must hold them."""
    columns = make_columns(serials)
    if not large:
        return columns
    more = pa.array(_long_texts()).take(pa.array(serials % _LONG_TEXTS))
    comment = pc.binary_join_element_wise(columns["comment"].combine_chunks(), more, " ")
    return columns.set_column(columns.column_names.index("comment"), "comment", comment)


@cache
def _long_texts() -> list[str]:
    """Letters without a pattern: a text that repeats itself would shrink to nothing on its way."""
    letters = np.random.default_rng(11).integers(ord("a"), ord("z"), (_LONG_TEXTS, _LONG_BYTES), np.uint8)
    return [row.tobytes().decode() for row in letters]


def _encode_protobuf(columns: pa.Table) -> list[bytes]:
    event = _protobuf_class()
    made = []
    for project, event_type, product_id, created_at, price, user_name, comment in _rows(columns):
        message = event(
            project=project,
            event_type=event_type,
            product_id=product_id,
            price=str(price),
            user_name=user_name,
            comment=comment,
        )
        message.created_at.seconds, thousandths = divmod(created_at, 1000)
        message.created_at.nanos = thousandths * 1_000_000
        made.append(message.SerializeToString())
    return made


@cache
def _protobuf_class() -> Any:
    from google.protobuf.message_factory import GetMessageClass

    from oncehouse.protobuf.definition import describe, load_definition

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "event.proto"
        file.write_text(_PROTO)
        definition = load_definition(
            files=(str(file),), include=(), descriptor_set=None, message="bench.Event"
        )
    return GetMessageClass(describe(definition))


def _encode_avro(columns: pa.Table) -> list[bytes]:
    import fastavro

    schema = fastavro.parse_schema(_AVRO)
    names, made = columns.column_names, []
    for row in _rows(columns):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, dict(zip(names, row, strict=True)))
        made.append(out.getvalue())
    return made


def _rows(columns: pa.Table) -> Iterable[tuple[Any, ...]]:
    """Rows of Python values, times in milliseconds."""
    lists = [
        column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in columns.columns
    ]
    return zip(*lists, strict=True)
