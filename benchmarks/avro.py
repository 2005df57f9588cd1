"""Avro messages decoded a second on one core, against fastavro row by row and polars' reader on the same bytes.

    python benchmarks/avro.py [messages]

Events have 7 fields and about 75 bytes. fastavro's line is what a consumer would do that makes Python values of
each message, without columns. Polars reads the bodies joined into one container file, unchecked: it does not
notice a message that is too long or too short, and all after it are wrong. Times are processor time.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import random
import sys
import uuid
from typing import TYPE_CHECKING

import fastavro
import polars as pl
import pyarrow as pa

from decode import BLOCK, FIELDS, best_rate
from oncehouse.column_types.parser import parse_type
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.avro.decoder import AvroDecoder
from oncehouse.pipeline.formats.avro.default_writer import write_number
from oncehouse.pipeline.formats.base import DecodeLimits
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "project", "type": "string"},
        {"name": "event_type", "type": "string"},
        {"name": "product_id", "type": "long"},
        {"name": "user_id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}},
        {"name": "created_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "url", "type": ["null", "string"]},
    ],
}
_PARSED = fastavro.parse_schema(SCHEMA)
_SYNC = bytes(16)


def make_message(number: int, rng: random.Random) -> bytes:
    event = {
        "project": f"shop-{number % 20}",
        "event_type": rng.choice(["view", "click", "order"]),
        "product_id": number,
        "user_id": uuid.UUID(int=rng.getrandbits(128)),
        "price": decimal.Decimal(rng.randrange(100_000)) / 100,
        "created_at": dt.datetime.fromtimestamp(1_790_000_000 + number, dt.UTC),
        "url": f"https://example.com/{number % 997}" if number % 3 else None,
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED, event)
    return out.getvalue()


def make_decoder() -> Callable[[pa.Array], object]:
    decoder = AvroDecoder(
        fields={name: parse_type(text) for name, text in (FIELDS | {"url": "Nullable(String)"}).items()},
        schemas=[Schema(schema="1", format="avro", definition=json.dumps(SCHEMA))],
        version_source=VersionSource(place=VersionPlace.NONE, schema="1"),
        limits=DecodeLimits(max_message_bytes=1 << 20, max_depth=64),
    )
    return lambda block: decoder.decode(pa.record_batch({"value": block}))


def read_row_by_row(block: pa.Array) -> object:
    return [fastavro.schemaless_reader(io.BytesIO(body), _PARSED, None) for body in block.to_pylist()]


def read_by_polars(block: pa.Array) -> object:
    """One container file with one block: the schema, and the bodies behind one another."""
    entries = {"avro.schema": json.dumps(SCHEMA).encode(), "avro.codec": b"null"}
    header = b"".join(
        write_number(len(key)) + key.encode() + write_number(len(value)) + value
        for key, value in entries.items()
    )
    data = b"".join(block.to_pylist())
    head = b"Obj\x01" + write_number(len(entries)) + header + b"\0" + _SYNC
    return pl.read_avro(io.BytesIO(head + write_number(len(block)) + write_number(len(data)) + data + _SYNC))


def make_messages(count: int) -> list[bytes]:
    rng = random.Random(7)
    return [make_message(number, rng) for number in range(count)]


def measure(count: int = 100_000) -> list[dict[str, str | float]]:
    """The figures of `make bench`."""
    messages = make_messages(count)
    ours, slow = best_rate(make_decoder(), messages), best_rate(read_row_by_row, messages)
    return [
        {"name": "avro_messages_per_s", "value": round(ours), "unit": "messages/s"},
        {"name": "avro_row_by_row_messages_per_s", "value": round(slow), "unit": "messages/s"},
        {"name": "avro_over_row_by_row", "value": round(ours / slow, 2), "unit": "1"},
    ]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    messages = make_messages(count)
    print(f"{count:,} events of {sum(map(len, messages)) / count:.0f} bytes, blocks of {BLOCK:,}")
    slow = best_rate(read_row_by_row, messages)
    spoilt = [message[:-1] if number % 100 == 17 else message for number, message in enumerate(messages)]
    for name, rate in (
        ("fastavro, row by row, no columns", slow),
        ("polars, joined, unchecked", best_rate(read_by_polars, messages)),
        ("decoded, typed and checked", best_rate(make_decoder(), messages)),
        ("one bad message in 100", best_rate(make_decoder(), spoilt)),
    ):
        print(f"{name:36} {rate:>12,.0f} messages/s  {rate / slow:5.1f} of row by row")


if __name__ == "__main__":
    main()
