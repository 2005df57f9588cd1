"""Protobuf messages decoded a second on one core, against the protobuf library taking them one by one.

    python benchmarks/protobuf.py [messages]

Both make the same Arrow columns out of the same bytes, which is checked. Events have 9 fields and about 120
bytes: texts, numbers, an enum, a Timestamp, a nested message and a list. Times are processor time, the best of
three, taken in turns. `measure` gives the figures to `make bench`. Last come the events of `traffic.py`, as the other
benchmarks send them: what decoding one costs, and what of that is reading its bytes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ptars
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import arrow_type
from oncehouse.pipeline.formats.base import DecodeLimits
from oncehouse.pipeline.formats.factory import format_of, require_section
from oncehouse.pipeline.formats.protobuf.decoder import ProtobufFormat
from oncehouse.pipeline.formats.protobuf.schema_sources import make_schema, read_files
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource
from oncehouse.protobuf.definition import describe, read_definition
from traffic import Kind, make_encoder, make_source, plan_serials

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = 400_000
BLOCK = 50_000
TRIES = 3
PROTO = """
syntax = "proto3";
package bench;
import "google/protobuf/timestamp.proto";
enum Kind { UNKNOWN = 0; VIEW = 1; CLICK = 2; BUY = 3; }
message Buyer { int64 id = 1; string country = 2; }
message Event {
  string project = 1; Kind kind = 2; int64 product_id = 3; google.protobuf.Timestamp at = 4; double price = 5;
  uint32 amount = 6; string session = 7; Buyer buyer = 8; repeated int32 labels = 9;
}
"""
FIELDS = {
    "project": "LowCardinality(String)",
    "kind": "LowCardinality(String)",
    "product_id": "Int64",
    "at": "DateTime64(6, 'UTC')",
    "price": "Float64",
    "amount": "UInt32",
    "session": "String",
    "buyer.id": "Int64",
    "labels": "Array(Int32)",
}


def make_messages(message_class: Any, count: int) -> list[bytes]:
    rng = random.Random(7)
    made = []
    for number in range(count):
        message = message_class(
            project=rng.choice(("shop", "forum", "search")),
            kind=rng.randrange(1, 4),
            product_id=rng.randrange(1 << 40),
            price=round(rng.random() * 100, 2),
            amount=rng.randrange(10),
            session=str(uuid.UUID(int=rng.getrandbits(128))),
            labels=[rng.randrange(100) for _ in range(number % 4)],
        )
        message.at.seconds, message.at.nanos = 1_700_000_000 + number, rng.randrange(1_000_000) * 1000
        message.buyer.id, message.buyer.country = rng.randrange(1 << 30), "NL"
        made.append(message.SerializeToString())
    return made


def read_row_by_row(block: pa.RecordBatch, message_class: Any, schema: pa.Schema) -> pa.RecordBatch:
    """What one writes with the protobuf library and pyarrow alone."""
    parse, name = (
        message_class.FromString,
        message_class.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number,
    )
    names = {number: value.name for number, value in name.items()}
    rows = []
    for value in block.column("value").to_pylist():
        event = parse(value)
        at = event.at
        rows.append(
            (
                event.project,
                names[event.kind],
                event.product_id,
                at.seconds * 1_000_000 + at.nanos // 1000,
                event.price,
                event.amount,
                event.session,
                event.buyer.id,
                list(event.labels),
            )
        )
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def best_seconds(work: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(work, float("inf"))
    for _ in range(TRIES):
        for name, run in work.items():
            started = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - started)
    return best


def spoil(blocks: list[pa.RecordBatch], every: int) -> list[pa.RecordBatch]:
    """The same messages, one of so many cut off in the middle of a number."""
    spoilt = []
    for block in blocks:
        values = block.column("value").to_pylist()
        values[::every] = [b"\x18\xff"] * len(values[::every])
        spoilt.append(pa.record_batch({"value": pa.array(values, pa.binary())}))
    return spoilt


def compare(count: int, *, more: bool = False) -> dict[str, float]:
    """Messages a second: `ours` and `row_by_row`; with `more`, also ptars alone and bad messages."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "event.proto"
        file.write_text(PROTO)
        schema = make_schema("1", files=[str(file)], message="bench.Event")
    message_class = GetMessageClass(describe(read_definition(schema.definition)))
    values = make_messages(message_class, count)
    blocks = [
        pa.record_batch({"value": pa.array(values[start : start + BLOCK], pa.binary())})
        for start in range(0, count, BLOCK)
    ]
    types = {name: parse_type(text) for name, text in FIELDS.items()}
    columns = pa.schema([(name, arrow_type(type_)) for name, type_ in types.items()])
    decoder = ProtobufFormat(version_source=VersionSource(place=VersionPlace.NONE, schema="1")).make_decoder(
        types, [schema], DecodeLimits(max_message_bytes=1 << 20, max_depth=64)
    )
    if not decoder.decode(blocks[0]).rows.equals(read_row_by_row(blocks[0], message_class, columns)):
        raise AssertionError("the two ways read different values")
    work: dict[str, Callable[[], object]] = {
        "ours": lambda: [decoder.decode(block) for block in blocks],
        "row_by_row": lambda: [read_row_by_row(block, message_class, columns) for block in blocks],
    }
    if more:
        handler = ptars.HandlerPool([message_class.DESCRIPTOR.file]).get_for_message(message_class.DESCRIPTOR)
        work["ptars alone"] = lambda: [
            handler.array_to_record_batch(block.column("value")) for block in blocks
        ]
        for every in (10_000, 100):
            spoilt = spoil(blocks, every)
            work[f"ours, one bad message in {every}"] = lambda spoilt=spoilt: [  # type: ignore[misc]
                decoder.decode(block) for block in spoilt
            ]
    seconds = best_seconds(work)
    return {name: count / taken for name, taken in seconds.items()}


def measure(count: int = MESSAGES) -> list[dict[str, str | float]]:
    """The figures of `make bench`."""
    found = compare(count)
    return [
        {"name": "protobuf_messages_per_s", "value": round(found["ours"]), "unit": "messages/s"},
        {
            "name": "protobuf_row_by_row_messages_per_s",
            "value": round(found["row_by_row"]),
            "unit": "messages/s",
        },
        {
            "name": "protobuf_over_row_by_row",
            "value": round(found["ours"] / found["row_by_row"], 2),
            "unit": "1",
        },
    ]


def weigh_traffic(count: int) -> dict[str, float]:
    """Processor time of an event of the pipeline's benchmarks, in microseconds: decoded, and its wire format alone."""
    kind = Kind(format="protobuf")
    values = make_encoder(kind)(plan_serials(count, kind.duplicates))
    blocks = [
        pa.record_batch({"value": pa.array(values[start : start + BLOCK], pa.binary())})
        for start in range(0, count, BLOCK)
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = make_source(kind, "nowhere:9092", "events", Path(folder))
        (schema,) = read_files(require_section(source.protobuf, "protobuf"))
        format_ = format_of(source)
    types = {name: parse_type(text) for name, text in source.fields.items()}
    decoder = format_.make_decoder(types, [schema], DecodeLimits(max_message_bytes=1 << 20, max_depth=64))
    descriptor = describe(read_definition(schema.definition))
    handler = ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)
    work: dict[str, Callable[[], object]] = {
        "decoded": lambda: [decoder.decode(block) for block in blocks],
        "ptars alone": lambda: [handler.array_to_record_batch(block.column("value")) for block in blocks],
    }
    return {name: taken / count * 1e6 for name, taken in best_seconds(work).items()}


if __name__ == "__main__":
    speeds = compare(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES, more=True)
    for name, speed in speeds.items():
        print(f"{name:<32} {speed:>12,.0f} messages/s {speed / speeds['row_by_row']:6.2f} of row by row")
    for name, microseconds in weigh_traffic(MESSAGES).items():
        print(f"{'events of the pipeline, ' + name:<32} {microseconds:>12.2f} µs of a core an event")
