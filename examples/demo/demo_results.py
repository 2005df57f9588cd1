"""What the demo counts, when it has gone well, and its command line.

Lost and doubled are counted in ClickHouse against what was produced, made again from the plan of the traffic; the
ledger has no say in them. Its own counts are shown next to them and must agree.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from demo_events import FIELDS, IDENTITY, DemoTraffic, make_columns
from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.errors import OncehouseError

_PRODUCED_TABLE = "produced"
_BLOCK_EVENTS = 500_000
_INTERRUPTED_EXIT_CODE = 130


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The destination table against what was produced."""

    rows: int
    lost: int
    """Events that were produced and are not there, exactly as they were."""
    doubled: int
    foreign: int
    """Rows that the demo did not produce."""

    @property
    def exact(self) -> bool:
        return self.lost == self.doubled == self.foreign == 0

    def lines(self) -> list[str]:
        return [
            f"rows not produced {self.foreign}",
            f"lost {self.lost}",
            f"doubled {self.doubled}",
        ]


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    produced: int
    unique: int
    duplicates: int
    dead_letters: int
    expected: tuple[int, int, int]
    """Unique events, duplicates and dead letters as they were planned."""
    found: Comparison
    events_per_second: float
    inserts: int
    kills: int
    answers_swallowed: int
    verified: bool

    @property
    def went_well(self) -> bool:
        return (
            self.found.exact
            and (self.unique, self.duplicates, self.dead_letters) == self.expected
            and self.kills > 0
            and self.answers_swallowed > 0
            and self.verified
        )

    def lines(self) -> list[str]:
        """The table: one `name number` a line."""
        return [
            f"produced {self.produced}",
            f"unique {self.unique}",
            f"duplicates {self.duplicates}",
            f"dead letters {self.dead_letters}",
            f"rows in ClickHouse {self.found.rows}",
            f"events/s {self.events_per_second:.0f}",
            f"inserts {self.inserts}",
            f"rows an insert {self.found.rows / max(self.inserts, 1):.0f}",
            f"kills {self.kills}",
            f"answers swallowed {self.answers_swallowed}",
            f"verify {'ok' if self.verified else 'failed'}",
            *self.found.lines(),
        ]


def compare(client: Client, table: str, traffic: DemoTraffic) -> Comparison:
    """Count by content: every field of every event takes part."""
    _insert_produced(client, traffic.unique)
    event = f"sipHash128({', '.join(quote(name) for name in FIELDS)})"
    name, produced = quote_table(table), quote_table(_PRODUCED_TABLE)
    identity = ", ".join(quote(field) for field in IDENTITY)
    ((rows, doubled),) = client.query(f"SELECT count(), count() - uniqExact({identity}) FROM {name}")
    return Comparison(
        rows=rows,
        doubled=doubled,
        lost=_count_missing(client, event, held=produced, sought_in=name),
        foreign=_count_missing(client, event, held=name, sought_in=produced),
    )


def _count_missing(client: Client, event: str, *, held: str, sought_in: str) -> int:
    ((missing,),) = client.query(
        f"SELECT count() FROM {held} WHERE {event} NOT IN (SELECT {event} FROM {sought_in})"
    )
    return int(missing)


def _insert_produced(client: Client, unique: int) -> None:
    columns = ", ".join(f"{quote(name)} {type_}" for name, type_ in FIELDS.items())
    table = quote_table(_PRODUCED_TABLE)
    client.command(f"CREATE OR REPLACE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY product_id")
    for start in range(0, unique, _BLOCK_EVENTS):
        events = make_columns(np.arange(start, min(start + _BLOCK_EVENTS, unique)))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, events.schema) as writer:
            writer.write_table(events)
        client.insert_arrow(_PRODUCED_TABLE, tuple(FIELDS), sink.getvalue(), {})


class DemoOutcome(Protocol):
    @property
    def went_well(self) -> bool: ...

    def lines(self) -> list[str]: ...


class Demo(Protocol):
    def __call__(self, *, events: int, say: Callable[[str], None]) -> DemoOutcome: ...


def show_demo(demo: Demo, arguments: Sequence[str] | None, *, described: str | None, events: int) -> int:
    """`[--events N]`. Prints what happens with the seconds since the start; returns 0 only when all went well."""
    parser = argparse.ArgumentParser(description=described)
    parser.add_argument("--events", type=int, default=events, help="how many events, duplicates included")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", flush=True)

    try:
        result = demo(events=options.events, say=say)
    except OncehouseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT_CODE
    say("done")
    print("\n".join(result.lines()), flush=True)
    return 0 if result.went_well else 1
