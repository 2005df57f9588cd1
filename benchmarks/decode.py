"""Messages decoded a second on one core, against a bare call of Arrow's JSON reader on the same bytes.

    python benchmarks/decode.py [messages]

Events have 7 flat fields and about 213 bytes; times are processor time, so that neighbours on the machine
disturb less. The messages are alike, as those of one program are, and are read without a parser; the next line shows
what the parser takes for them. The other lines show what looking for new fields, a map column, texts for 64-bit
integers and bad messages cost.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import json as pa_json

from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.formats.json import decoder as json_decode
from oncehouse.pipeline.formats.json.decoder import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIELDS = {
    "project": "LowCardinality(String)",
    "event_type": "LowCardinality(String)",
    "product_id": "Int64",
    "user_id": "UUID",
    "price": "Decimal(18, 2)",
    "created_at": "DateTime64(3, 'UTC')",
    "url": "String",
}
BLOCK = 50_000
ROUNDS = 4


def make_event(number: int, rng: random.Random) -> dict[str, object]:
    return {
        "project": f"shop-{number % 20}",
        "event_type": rng.choice(["view", "click", "order"]),
        "product_id": number,
        "user_id": str(uuid.UUID(int=rng.getrandbits(128))),
        "price": round(rng.random() * 1000, 2),
        "created_at": f"2026-11-15T10:{number % 60:02}:{number % 59:02}.{number % 1000:03}Z",
        "url": f"https://example.com/{number % 997}",
    }


def make_decoder(fields: dict[str, str], *, watch: bool = False) -> JsonDecoder:
    types = {name: parse_type(text) for name, text in fields.items()}
    return JsonDecoder(fields=types, max_message_bytes=1 << 20, max_depth=64, watch=watch)


@contextmanager
def parsing() -> Iterator[None]:
    """Let every block be parsed."""
    usual, json_decode.LEAST_UNIFORM = json_decode.LEAST_UNIFORM, sys.maxsize
    try:
        yield
    finally:
        json_decode.LEAST_UNIFORM = usual


def encode(events: list[dict[str, object]]) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def best_rate(work: Callable[[pa.Array], object], messages: list[bytes]) -> float:
    blocks = [pa.array(messages[at : at + BLOCK], pa.binary()) for at in range(0, len(messages), BLOCK)]
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for block in blocks:
            work(block)
        best = min(best, time.process_time() - start)
    return len(messages) / best


def read_bare(block: pa.Array) -> pa.Table:
    """The least that could be done: join and read, unchecked, everything as Arrow guesses it."""
    joined = b"\n".join(block.to_pylist())
    options = pa_json.ReadOptions(use_threads=False, block_size=len(joined) + 1)
    return pa_json.read_json(pa.BufferReader(joined), read_options=options)


def show(name: str, rate: float, bare: float) -> None:
    print(f"{name:36} {rate:>12,.0f} messages/s  {rate / bare:5.2f} of bare")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    rng = random.Random(7)
    events = [make_event(number, rng) for number in range(count)]
    messages = encode(events)
    print(f"{count:,} events of {sum(map(len, messages)) / count:.0f} bytes, blocks of {BLOCK:,}")
    bare = best_rate(read_bare, messages)
    show("bare pyarrow.json", bare, bare)
    decoder = make_decoder(FIELDS)
    show("decode, typed and checked", best_rate(decoder.decode, messages), bare)
    with parsing():
        show("the same by the parser", best_rate(decoder.decode, messages), bare)
    show(
        "looking for new fields, none there",
        best_rate(make_decoder(FIELDS, watch=True).decode, messages),
        bare,
    )
    fewer = {name: type_ for name, type_ in FIELDS.items() if name not in {"price", "url"}}
    show("two fields undeclared", best_rate(make_decoder(fewer).decode, messages), bare)
    show("two fields new, and looked for", best_rate(make_decoder(fewer, watch=True).decode, messages), bare)
    texts = encode([event | {"product_id": str(event["product_id"])} for event in events])
    show("64-bit integers as texts", best_rate(make_decoder(FIELDS).decode, texts), bare)
    maps = encode([event | {"tags": {"a": "1", "b": "2"}} for event in events])
    show(
        "with a map of two keys",
        best_rate(make_decoder(FIELDS | {"tags": "Map(String, String)"}).decode, maps),
        bare,
    )
    escaped = encode(
        [event | {"url": 'a "b"'} if number % 100 == 17 else event for number, event in enumerate(events)]
    )
    show("an escape in one of 100", best_rate(make_decoder(FIELDS).decode, escaped), bare)
    for share in (1_000_000, 10_000, 100):
        spoilt = [b'{"project":1}' if number % share == 17 else text for number, text in enumerate(messages)]
        show(f"one bad message in {share:,}", best_rate(decoder.decode, spoilt), bare)


if __name__ == "__main__":
    main()
