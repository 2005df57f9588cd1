"""An INSERT's own look at the rows it reads: on a server that was brought in step, and no fewer than were found.

A range is found by one statement and inserted by another, which may reach a replica that lags. Both conditions stand
in the INSERT itself and fail before its first row, so that a range is never inserted in part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from oncehouse.clickhouse.client import Client, failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import quote_table
from oncehouse.clickhouse.replica_sync import write_in_step
from oncehouse.clickhouse.table_engines import read_engines
from oncehouse.errors import OncehouseError, TransientError
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state.position import Range, format_position_time
from oncehouse.etl.steps.operations import Insert, Operation
from oncehouse.etl.steps.source_ranges import between, count_range
from oncehouse.etl.steps.transforms import Transform

_FEWER = "oncehouse: fewer rows than were found"


def require_rows(
    client: Client,
    topic: Topic,
    transform: Transform,
    span: Range,
    operations: tuple[Operation, ...],
    *,
    is_begun: bool,
) -> tuple[Operation, ...]:
    """The operations of a step, whose INSERT fails where fewer rows of the main source are seen than were found.

    Of a range that was begun before, rows may have been deleted since.
    """
    if topic.template is not Template.STEP or not span.rows or not _keeps_rows(client, topic.depends_on[0]):
        return operations
    rows = span.rows
    if is_begun:
        rows = min(rows, count_range(client, topic.depends_on[0], last=span.last, next_=span.next))
    condition = _has_rows(topic.depends_on[0], replace(span, rows=rows))
    return tuple(
        replace(one, sql=_hold_select(one.sql, transform, condition)) if isinstance(one, Insert) else one
        for one in operations
    )


def insert_range(
    client: Client,
    topic: Topic,
    transform: Transform,
    operation: Insert,
    *,
    span: Range,
    send: Callable[[Client, str], None],
) -> None:
    """Only on a server that was brought in step with all sources. `send` gets the whole statement."""
    try:
        write_in_step(
            client,
            topic.depends_on,
            lambda writer, in_step: send(writer, _hold_select(operation.sql, transform, in_step)),
        )
    except OncehouseError as error:
        if failure_of(error).code != ErrorCode.FUNCTION_THROW_IF_VALUE_IS_NON_ZERO or _FEWER not in str(
            error
        ):
            raise
        raise TransientError(_explain_fewer(topic, span)) from error


def _explain_fewer(topic: Topic, span: Range) -> str:
    last, upto = (f"{format_position_time(one)} (id {one.id})" for one in (span.last, span.next))
    return (
        f"Topic {topic.topic}: the server that was to insert the range after {last} up to {upto} shows fewer rows of "
        f"{topic.depends_on[0]} than the {span.rows} that were found in it: a replica lags behind, or rows were "
        "deleted. Nothing was inserted; the range runs again."
    )


def _hold_select(sql: str, transform: Transform, condition: str) -> str:
    """The statement, with a condition on what its transform reads."""
    if not condition:
        return sql
    select = f"({transform.select})"
    if select not in sql:
        raise AssertionError(f"the insert does not read from its transform {transform.name}")
    held = f"(SELECT * FROM {select} WHERE {condition})"  # noqa: S608 - the statement's own text
    return sql.replace(select, held, 1)


def _has_rows(source: str, span: Range) -> str:
    """Whole numbers, which may stand in the text: names of parameters may be those of a template."""
    return (
        f"(SELECT throwIf(count() < {span.rows:d}, '{_FEWER}') FROM {quote_table(source)} "  # noqa: S608 - quoted
        f"WHERE {between(span.last, span.next)}) = 0"
    )


def _keeps_rows(client: Client, table: str) -> bool:
    """Nothing is merged away between the two statements, which would look the same."""
    return not any(engine.merges_rows for engine in read_engines(client, [table]))
