"""A step as a sequence of frozen operations: `plan` prints them, `run` performs the very same ones.

The order is the promise. `next` is written before anything is inserted; the insert is one block under a token
made of topic and range; `last` is written after it. After a crash anywhere the same range runs again under the
same token, and ClickHouse drops what it has, materialized views included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oncehouse.clickhouse.names import quote_table
from oncehouse.etl.offsets import DONE, INSERTING, MORE, SIZING
from oncehouse.etl.records import Position, Topic
from oncehouse.etl.sources import Range
from oncehouse.etl.templates import Transform, bind, bind_guard, insert_sql

BLOCK_ROWS = 1_048_576
"""Rows of a transform's output that are inserted as one block; a range that yields more is halved."""
GATE_SHARE = 0.5
"""A rebuilt table or partition with fewer than this share of the rows it had is not put in place."""


@dataclass(frozen=True, kw_only=True)
class WriteNext:
    topic: str
    next: Position
    state: str


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Count what the transform yields for `next`, and halve `next` until that fits one block."""

    select: str


@dataclass(frozen=True, kw_only=True)
class Execute:
    """A statement that is harmless when it runs again."""

    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Insert:
    sql: str
    token: str
    parameters: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Put the table built aside in place, if it has rows enough."""

    dst: str
    aside: str
    gate_share: float


@dataclass(frozen=True, kw_only=True)
class ReplacePartitions:
    """Put each partition built aside in place, if every one has rows enough."""

    dst: str
    aside: str
    gate_share: float


@dataclass(frozen=True, kw_only=True)
class WriteLast:
    topic: str
    rows: int
    state: str


Operation = WriteNext | Fit | Execute | Insert | Exchange | ReplacePartitions | WriteLast


def step_operations(
    topic: Topic, transform: Transform, columns: tuple[str, ...], span: Range, *, hostid: str, is_fixed: bool
) -> tuple[Operation, ...]:
    """Step: `is_fixed` says that the range's output is known to fit, or was begun before."""
    parameters = bind_range(topic, transform, span, hostid)
    token = token_of(topic.topic, span.last, span.next)
    sizing: tuple[Operation, ...] = () if is_fixed else (Fit(select=transform.select),)
    return (
        WriteNext(topic=topic.topic, next=span.next, state=INSERTING if is_fixed else SIZING),
        *sizing,
        *(Execute(sql=sql) for sql in topic.before),
        Insert(
            sql=insert_sql(topic.dst, columns, transform),
            token=token,
            parameters=parameters,
            settings=insert_settings(token),
        ),
        *(Execute(sql=sql) for sql in topic.after),
        WriteLast(topic=topic.topic, rows=span.rows, state=MORE if span.is_cut else DONE),
    )


def rebuild_operations(
    topic: Topic,
    transform: Transform,
    columns: tuple[str, ...],
    span: Range,
    *,
    hostid: str,
    token: str,
    replaces_partitions: bool,
) -> tuple[Operation, ...]:
    """Reload and Range: build aside, look at the row counts, put in place. `token` is fresh for each run."""
    aside = f"{topic.dst}2"
    drop = Execute(sql=f"DROP TABLE IF EXISTS {quote_table(aside)} SYNC")
    swap = ReplacePartitions if replaces_partitions else Exchange
    return (
        WriteNext(topic=topic.topic, next=span.next, state=INSERTING),
        drop,
        Execute(sql=f"CREATE TABLE {quote_table(aside)} AS {quote_table(topic.dst)}"),
        *(Execute(sql=sql) for sql in topic.before),
        Insert(
            sql=insert_sql(aside, columns, transform),
            token=token,
            parameters=bind_range(topic, transform, span, hostid),
            settings=insert_settings(token),
        ),
        swap(dst=topic.dst, aside=aside, gate_share=GATE_SHARE),
        *(Execute(sql=sql) for sql in topic.after),
        drop,
        WriteLast(topic=topic.topic, rows=span.rows, state=DONE),
    )


def bind_range(topic: Topic, transform: Transform, span: Range, hostid: str) -> dict[str, Any]:
    """What an insert binds."""
    if transform.offsets_table:
        return bind_guard(topic.topic, hostid, span.last, span.next)
    return bind_select(transform, span)


def bind_select(transform: Transform, span: Range) -> dict[str, Any]:
    """What the transform alone binds."""
    return bind(span.last, span.next) if transform.has_range else {}


def token_of(topic: str, last: Position, next_: Position) -> str:
    """The same range of the same topic always has the same token."""
    text = f"{len(topic)}:{topic}:{last.time_ms}:{last.id}:{next_.time_ms}:{next_.id}"
    return f"etl-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def insert_settings(token: str) -> dict[str, Any]:
    """One block an insert: tokens are remembered by block, so their number must not change between attempts."""
    return {
        "insert_deduplication_token": token,
        "insert_deduplicate": 1,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
        "async_insert": 0,
        "max_insert_threads": 1,
        "min_insert_block_size_rows": 1 << 40,  # never reached: what halving keeps small is memory
        "min_insert_block_size_bytes": 0,
        "max_partitions_per_insert_block": 0,
    }


def explain(operation: Operation) -> str:  # noqa: PLR0911 - one line an operation
    """One operation as `plan` prints it."""
    match operation:
        case WriteNext():
            return f"write next = ({operation.next.time_ms} ms, {operation.next.id}), state {operation.state}"
        case Fit():
            return f"count the transform's rows, halve next while they are more than {BLOCK_ROWS}"
        case Execute():
            return operation.sql
        case Insert():
            bound = "".join(f"\n  {name} = {value}" for name, value in operation.parameters.items())
            return f"{operation.sql}\n  as one block, token {operation.token}{bound}"
        case Exchange():
            return (
                f"EXCHANGE TABLES {quote_table(operation.dst)} AND {quote_table(operation.aside)}, "
                f"if it has {operation.gate_share:.0%} of the rows or more"
            )
        case ReplacePartitions():
            return (
                f"ALTER TABLE {quote_table(operation.dst)} REPLACE PARTITION … FROM {quote_table(operation.aside)}, "
                f"if each has {operation.gate_share:.0%} of its rows or more"
            )
        case WriteLast():
            return f"write last = next, rows = {operation.rows}, state {operation.state}"
