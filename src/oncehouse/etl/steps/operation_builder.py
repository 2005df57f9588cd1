"""Lays a step out as a sequence of operations: `plan` prints them, `run` performs the very same ones.

The order is the promise. `next` is written before anything is inserted, and fixed before the insert begins; the
insert is one block under a token made of topic and range; `last` is written after it. After a crash anywhere the
same range runs again under the same token, and ClickHouse drops what it has, materialized views included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from oncehouse.clickhouse.identifiers import quote_table
from oncehouse.etl.lineage.topic import ExpectationKind, Template, Topic
from oncehouse.etl.quality.expectations import measure_sql
from oncehouse.etl.state.position import Position, Range
from oncehouse.etl.state.topic_lease import DONE, INSERTING, MORE, SIZING
from oncehouse.etl.state.topic_state import JobKind, OpenRange
from oncehouse.etl.steps.exact_settings import insert_settings
from oncehouse.etl.steps.operations import (
    DropStagingTables,
    Exchange,
    Execute,
    Expect,
    FixRange,
    Freeze,
    Insert,
    Operation,
    RangeSize,
    ReplacePartitions,
    WriteJobRange,
    WriteLast,
    WriteNext,
)
from oncehouse.etl.steps.transforms import Transform, bind, bind_guard, insert_sql

STAGING_INFIX = "_aside_"
"""Between the name of a table and the id of the run that rebuilds it."""
BLOCK_ROWS = 1_048_576
"""Rows of a transform's output that are inserted as one block; a range that yields more is halved."""


def step_operations(
    topic: Topic,
    transform: Transform,
    columns: Mapping[str, str],
    span: Range,
    *,
    hostid: str,
    is_fixed: bool,
    is_resumed: bool = False,
    generation: int = 0,
    most_blocks: int = 0,
) -> tuple[Operation, ...]:
    """Step: `is_fixed` says that the range's output is known to fit; `is_resumed` that it was begun before.

    Until its rows have been looked at a range is not fixed: what does not pass is planned again. `most_blocks` is how
    many blocks (one a partition) an insert may make: as many as the table remembers; 0 sets no bound.
    """
    token = token_of(topic.topic, span.last, span.next, generation)
    reads: list[Operation] = [] if is_fixed else [RangeSize(select=transform.select)]
    if topic.expect and not is_resumed:
        reads.append(_check_output(topic, transform, columns, span))
    return (
        WriteNext(topic=topic.topic, next=span.next, state=SIZING if reads else INSERTING),
        *before_operations(topic, transform, span),
        *reads,
        *([FixRange(topic=topic.topic, next=span.next, rows=span.rows)] if reads else []),
        Insert(
            sql=insert_sql(topic.dst, tuple(columns), transform),
            token=token,
            parameters=bind_range(topic, transform, span, hostid),
            settings=insert_settings(token, most_blocks),
        ),
        *_after_operations(topic, transform, span),
        WriteLast(
            topic=topic.topic,
            rows=span.rows,
            state=MORE if span.is_cut else DONE,
            splits_time=span.splits_time,
        ),
    )


def job_operations(operations: tuple[Operation, ...], begin: WriteJobRange) -> tuple[Operation, ...]:
    """The operations of a forward run as a job performs them: its range is fixed from the start."""
    return (begin, *(one for one in operations[1:] if not isinstance(one, FixRange)))


def repair_operations(
    topic: Topic,
    transform: Transform,
    columns: Mapping[str, str],
    span: Range,
    *,
    hostid: str,
    opened: OpenRange,
    most_blocks: int = 0,
) -> tuple[Operation, ...]:
    """What the transform yields for the late rows of a range, and for no others."""
    frozen = late_table(topic, opened.number)
    token = token_of(topic.topic, span.last, span.next, opened.generation, opened.number)
    return (
        WriteJobRange(topic=topic.topic, job_kind=JobKind.REPAIR, opened=opened),
        Freeze(table=frozen, number=opened.number, last=span.last, next=span.next),
        *before_operations(topic, transform, span),
        *_check_late_rows(topic, transform, columns, span, frozen),
        Insert(
            sql=insert_sql(topic.dst, tuple(columns), transform, late_condition(frozen)),
            token=token,
            parameters=bind_range(topic, transform, span, hostid),
            settings=insert_settings(token, most_blocks),
        ),
        *_after_operations(topic, transform, span),
        WriteLast(topic=topic.topic, rows=span.rows, state=DONE),
        # After it: a repair that runs again must find the same rows written down.
        Execute(sql=f"DROP TABLE IF EXISTS {quote_table(frozen)} SYNC"),
    )


def late_table(topic: Topic, number: int) -> str:
    return f"{topic.dst}_late{number}"


def late_condition(table: str) -> str:
    """Of the rows that a transform or a Fact table yields: only those that were written down as late."""
    place = "(toUnixTimestamp64Milli(toDateTime64(pos, 3)), toUInt64(id))"
    return f"{place} IN (SELECT time_ms, id FROM {quote_table(table)})"  # noqa: S608 - quoted


def rebuild_operations(
    topic: Topic,
    transform: Transform,
    columns: Mapping[str, str],
    span: Range,
    *,
    hostid: str,
    token: str,
) -> tuple[Operation, ...]:
    """Reload and Range: build aside, look at the rows, put in place. `token` is fresh for each run, and so is the name
    of what it builds: no other process can put that in place, nor fill it."""
    staging = staging_table(topic.dst, token)
    replaces_partitions = topic.template is Template.RANGE
    swap = ReplacePartitions if replaces_partitions else Exchange
    return (
        WriteNext(topic=topic.topic, next=span.next, state=INSERTING),
        DropStagingTables(dst=topic.dst),
        Execute(sql=f"CREATE TABLE {quote_table(staging)} AS {quote_table(topic.dst)}"),
        *before_operations(topic, transform, span),
        Insert(
            sql=insert_sql(staging, tuple(columns), transform),
            token=token,
            parameters=bind_range(topic, transform, span, hostid),
            settings=insert_settings(token),
        ),
        *([_check_staging(topic, columns, staging)] if topic.expect else []),
        swap(dst=topic.dst, staging=staging, gate_share=topic.gate_share),
        *_after_operations(topic, transform, span),
        Execute(sql=f"DROP TABLE IF EXISTS {quote_table(staging)} SYNC"),
        WriteLast(topic=topic.topic, rows=span.rows, state=DONE, is_whole=not replaces_partitions),
    )


def staging_table(dst: str, token: str) -> str:
    return f"{dst}{STAGING_INFIX}{hashlib.sha256(token.encode()).hexdigest()[:16]}"


def before_operations(topic: Topic, transform: Transform, span: Range) -> tuple[Execute, ...]:
    """The lineage's own statements, then the template's."""
    return (
        *_number_statements(topic, "before", topic.before),
        *_number_statements(
            topic, f"{transform.name}, before its SELECT,", transform.before, bind_select(transform, span)
        ),
    )


def _after_operations(topic: Topic, transform: Transform, span: Range) -> tuple[Execute, ...]:
    return (
        *_number_statements(
            topic, f"{transform.name}, after its SELECT,", transform.after, bind_select(transform, span)
        ),
        *_number_statements(topic, "after", topic.after),
    )


def _number_statements(
    topic: Topic, key: str, statements: tuple[str, ...], parameters: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Execute]:
    """The user's own statements, each with the name that reports its failure."""
    for number, sql in enumerate(statements, 1):
        label = f"Topic {topic.topic}: statement {number} of {len(statements)} of `{key}`"
        yield Execute(sql=sql, parameters=parameters, label=label)


def _check_output(topic: Topic, transform: Transform, columns: Mapping[str, str], span: Range) -> Expect:
    """On what the transform yields, before it goes in."""
    sql, bound = measure_sql(
        topic.expect, columns, rows_from=f"({transform.select})", source_rows=f"{span.rows} AS source_rows"
    )
    return Expect(
        topic=topic.topic,
        sql=sql,
        parameters={**bind_select(transform, span), **bound},
        expectations=topic.expect,
    )


def _check_late_rows(
    topic: Topic, transform: Transform, columns: Mapping[str, str], span: Range, frozen: str
) -> tuple[Expect, ...]:
    """On the late rows alone: how many those are says nothing, what stands in them does."""
    expected = tuple(
        one for one in topic.expect if one.check in {ExpectationKind.NULL_SHARE, ExpectationKind.VALUE}
    )
    if not expected:
        return ()
    rows_from = f"(SELECT * FROM ({transform.select}) WHERE {late_condition(frozen)})"  # noqa: S608 - quoted, or the user's own text
    sql, bound = measure_sql(expected, columns, rows_from=rows_from, source_rows="0 AS source_rows")
    parameters = {**bind_select(transform, span), **bound}
    return (Expect(topic=topic.topic, sql=sql, parameters=parameters, expectations=expected),)


def _check_staging(topic: Topic, columns: Mapping[str, str], staging: str) -> Expect:
    """On what was built, before it is put in place."""
    counts = any(one.check == ExpectationKind.ROWS_PER_SOURCE_ROW for one in topic.expect)
    source_rows = f"(SELECT count() FROM {quote_table(topic.depends_on[0])})" if counts else "0"  # noqa: S608 - quoted
    sql, bound = measure_sql(
        topic.expect, columns, rows_from=quote_table(staging), source_rows=f"{source_rows} AS source_rows"
    )
    return Expect(topic=topic.topic, sql=sql, parameters=bound, expectations=topic.expect)


def bind_range(topic: Topic, transform: Transform, span: Range, hostid: str) -> dict[str, Any]:
    """What an insert binds."""
    guard = bind_guard(topic.topic, hostid, span.last, span.next) if transform.guard_table else {}
    return {**guard, **bind_select(transform, span)}


def bind_select(transform: Transform, span: Range) -> dict[str, Any]:
    """What the transform alone binds."""
    return {**transform.bound, **(bind(span.last, span.next) if transform.has_range else {})}


def token_of(topic: str, last: Position, next_: Position, generation: int = 0, repair: int = 0) -> str:
    """The same range of the same topic always has the same token, until a seek."""
    text = f"{len(topic)}:{topic}:{last.time_ms}:{last.id}:{next_.time_ms}:{next_.id}:{generation}:{repair}"
    return f"etl-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
