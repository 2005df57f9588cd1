"""One attempt to bring one batch into its table: at most one INSERT, of one block, harmless to repeat.

Holds: the same rows in the same order go out as one Arrow record batch with the batch id as their token, so
the table itself drops what it has; earlier attempts are ended before anything else; after an attempt whose
outcome is unknown the table is asked before and after, and a batch that is there is never sent again. The caller
keeps the catalog: a query id is written down there before `insert_batch` is called, and what an outcome does to the
batch is the caller's decision.
"""

from __future__ import annotations

import math
import time
import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.errors import Failure, Kind
from oncehouse.clickhouse.identifiers import quote, quote_table, split_table
from oncehouse.clickhouse.insert.deadline import LOOK_WITHIN_SECONDS, Deadline, read_moment
from oncehouse.clickhouse.insert.outcome import (
    AlreadyThere,
    Inserted,
    InsertRequest,
    Outcome,
    PartlyThere,
    Refused,
    TryAgain,
)
from oncehouse.clickhouse.insert.session_fence import (
    advise,
    end_session,
    keeping_settings,
    session_settings,
)
from oncehouse.clickhouse.insert.view_proof import has_finished
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.errors import OncehouseError, TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncehouse.clickhouse.client import Client

__all__ = [
    "AlreadyThere",
    "InsertRequest",
    "Inserted",
    "Outcome",
    "PartlyThere",
    "Refused",
    "TryAgain",
    "batch_id_array",
    "count_by_partition",
    "decide",
    "encode_block",
    "end_attempts",
    "insert_batch",
    "query_id",
    "repeatable_settings",
]

FEW_ATTEMPTS = 5
"""How often a failure of unknown nature, or rows that do not show up, are given another chance."""

_UNBOUNDED = 1 << 40


class Step(StrEnum):
    INSERT = "insert"
    ALREADY_THERE = "already there"
    PARTLY_THERE = "partly there"


def query_id(batch_id: str, attempt: int) -> str:
    return f"{batch_id}-{attempt}"


def batch_id_array(batch_id: str, rows: int) -> pa.DictionaryArray:
    """The batch column: one byte a row, and the id as text, which has no byte order to get wrong."""
    indices = pa.array(np.zeros(rows, dtype=np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array([str(uuid.UUID(batch_id))]))


def decide(request: InsertRequest, *, found: int) -> Step:
    """What to do after looking, with earlier attempts ended and `found` rows of the batch in the table.

    Rows that are there are never sent again, whatever is believed of the token: views are proven in other ways.
    """
    if found > request.rows:
        return Step.PARTLY_THERE
    if found == request.rows:
        return Step.ALREADY_THERE
    if not request.may_be_forgotten:
        return Step.INSERT
    # A table that merges rows away may have taken in all of them and show none: its silence proves nothing.
    return Step.INSERT if found == 0 and not request.merges_rows else Step.PARTLY_THERE


def insert_batch(client: Client, request: InsertRequest, rows: pa.Table) -> Outcome:
    """Bring the batch into its table, or say why not. Failures of the server are outcomes, not exceptions."""
    clock = _Clock()
    if (wrong := _find_wrong(request, rows)) is not None:
        return Refused(
            message=wrong, code=None, seconds=clock.seconds(), outcome_unknown=request.outcome_unknown
        )
    if request.rows == 0:
        return Inserted(rows=0, seconds=0.0)
    may_have_written = request.outcome_unknown
    try:
        what = f"batch {request.batch_id} for {request.table}"
        end_attempts(client, what, request.earlier_query_ids, request.earlier_sessions)
        # Before the look: what it takes is not taken from the time to send.
        stream = encode(request, rows)
        deadline = request.deadline
        if request.outcome_unknown:
            if (settled := _look(_in_session(client, request), request, clock)) is not None:
                return settled
            deadline = _renew(client, request)
        settings = repeatable_settings(client, request.batch_id, query_id(request.batch_id, request.attempt))
        if request.session is not None:
            settings = {**settings, **session_settings(request.session)}
        may_have_written = True
        # From here on: what is told is how long the insert took, and so when it began.
        clock = _Clock()
        columns = (*request.columns, request.batch_column)
        client.insert_arrow(request.table, columns, stream, settings, deadline)
        if request.outcome_unknown:
            return _look_again(client, request, clock)
    except OncehouseError as error:
        return _judge(request, failure_of(error), str(error), clock, may_have_written=may_have_written)
    return Inserted(rows=request.rows, seconds=clock.seconds())


def judge_unsent(request: InsertRequest, error: OncehouseError) -> Outcome:
    """What a failure makes of an attempt that ended before its INSERT could be sent."""
    return _judge(request, failure_of(error), str(error), _Clock(), may_have_written=False)


def encode(request: InsertRequest, rows: pa.Table) -> pa.Buffer:
    """The batch as an Arrow stream of exactly one record batch: it arrives whole or not at all."""
    table = rows.select(list(request.columns)).combine_chunks()
    table = table.append_column(request.batch_column, batch_id_array(request.batch_id, rows.num_rows))
    return encode_block(table.to_batches()[0])


def encode_block(block: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    # Half the bytes on the line for no more processor time, here and in the server together.
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, block.schema, options=options) as writer:
        writer.write_batch(block)
    return sink.getvalue()


def insert_settings(batch_id: str) -> dict[str, str | int]:
    """The settings that make a repeated insert harmless; `check` finds out whether the user may set them."""
    return {
        "async_insert": 0,
        "insert_deduplicate": 1,
        "deduplicate_insert": "enable",
        "insert_deduplication_token": batch_id,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
        "materialized_views_ignore_errors": 0,
        # One block: a token is remembered a block, so attempts must never differ in their number.
        "max_insert_threads": 1,
        "min_insert_block_size_rows": _UNBOUNDED,
        "min_insert_block_size_bytes": _UNBOUNDED,
        "max_insert_block_size": _UNBOUNDED,
        "max_insert_block_size_bytes": 0,
        # A null or a column that is missing is an error, never a default value that nobody sent.
        "input_format_null_as_default": 0,
        "input_format_arrow_allow_missing_columns": 0,
        "timeout_overflow_mode": "throw",
    }


def repeatable_settings(client: Client, token: str, called: str) -> Mapping[str, Any]:
    """What to send along with an insert of one block, so that a repeat under the same token adds nothing."""
    return {
        **{name: value for name, value in insert_settings(token).items() if client.knows_setting(name)},
        "query_id": called,
        # The status line must be the insert's end, so nothing may be sent before it.
        "wait_end_of_query": 1,
        "send_progress_in_http_headers": 0,
        # The server gives up before the client does, so that a slow insert ends with an answer.
        "max_execution_time": max(1, math.ceil(client.insert_timeout_seconds)),
    }


class _Clock:
    def __init__(self) -> None:
        self._started = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._started


def _find_wrong(request: InsertRequest, rows: pa.Table) -> str | None:
    where = f"batch {request.batch_id} for {request.table}"
    if rows.num_rows != request.rows:
        return f"{where} has {request.rows} rows, but its parts hold {rows.num_rows}; run `oncehouse verify`"
    if missing := [name for name in request.columns if name not in rows.column_names]:
        return f"{where}: its parts have no column {missing[0]!r}; run `oncehouse verify`"
    if any(column.nbytes >= 1 << 31 for column in rows.columns):
        return f"{where}: a column of 2 GiB cannot be sent as one block; lower batch.max_bytes"
    return None


def end_attempts(client: Client, what: str, query_ids: Sequence[str], sessions: Sequence[str]) -> None:
    """Let no INSERT of these attempts run or begin any more; raises TransientError while one does all the same.

    `what` is said of them. An INSERT whose body is still arriving shows by its session alone.
    """
    if not query_ids:
        return
    ids = {"ids": list(query_ids)}
    client.command("KILL QUERY WHERE query_id IN {ids:Array(String)} SYNC", ids)
    running = client.query("SELECT query_id FROM system.processes WHERE query_id IN {ids:Array(String)}", ids)
    if running:
        raise TransientError(
            f"{what}: the earlier attempt {running[0][0]} still runs after KILL QUERY; it is waited for"
        )
    for session in sessions:
        end_session(client, session)


def _in_session(client: Client, request: InsertRequest) -> Client:
    """Each statement of a long look keeps the session of the attempt open."""
    if request.session is None:
        return client
    return client.with_settings(keeping_settings(request.session))


def _renew(client: Client, request: InsertRequest) -> Deadline | None:
    """Until when the INSERT may leave, after a look that may have taken long.

    The next attempt ends this one's session before it decides anything. While the server knows the session, no other
    has taken over, and time may count from here; without sessions nothing but the old deadline shows that.
    """
    deadline, now = request.deadline, read_moment()
    if deadline is None or request.session is None or deadline.elapsed(now) > LOOK_WITHIN_SECONDS:
        return deadline
    client.query("SELECT 1", settings=keeping_settings(request.session))
    return Deadline(began=now, seconds=deadline.seconds)


def _look(client: Client, request: InsertRequest, clock: _Clock) -> Outcome | None:
    partitions = count_by_partition(client, request.table, request.batch_column, request.batch_id)
    found = sum(partitions.values())
    match decide(request, found=found):
        case Step.INSERT:
            return None
        case Step.ALREADY_THERE:
            unproven = has_views(client, request.table) and not has_finished(
                client, request.earlier_query_ids, since=request.earlier_began
            )
            return AlreadyThere(rows=found, seconds=clock.seconds(), views_unproven=unproven)
        case Step.PARTLY_THERE:
            return _partly(request, partitions, clock, "and its token may be forgotten")


def _look_again(client: Client, request: InsertRequest, clock: _Clock) -> Outcome:
    """After a repeat, ask whether the rows are really there.

    A server killed between writing down a token and publishing the rows could remember one without rows,
    and drop every repeat of the batch without a word.
    """
    partitions = count_by_partition(client, request.table, request.batch_column, request.batch_id)
    found = sum(partitions.values())
    if found == request.rows or (request.merges_rows and 0 < found < request.rows):
        return Inserted(rows=request.rows, seconds=clock.seconds())
    if found > request.rows or request.attempt >= FEW_ATTEMPTS:
        return _partly(request, partitions, clock, "although the insert was accepted")
    return TryAgain(
        message=f"batch {request.batch_id}: {found} of {request.rows} rows are visible in {request.table} "
        "after an accepted insert; a replica may lag behind",
        code=None,
        seconds=clock.seconds(),
        outcome_unknown=True,
        too_many_parts=False,
    )


def _partly(request: InsertRequest, partitions: dict[str, int], clock: _Clock, why: str) -> PartlyThere:
    found = sum(partitions.values())
    shown = ", ".join(f"{name}: {count}" for name, count in sorted(partitions.items())[:20])
    return PartlyThere(
        message=f"batch {request.batch_id}: {request.table} holds {found} of its {request.rows} rows {why} "
        f"(rows by partition: {shown or 'none'}). Delete the batch's rows from the table, then let "
        "`oncehouse replay --table` send them again under a new batch id",
        found=found,
        rows=request.rows,
        partitions=tuple(sorted(partitions.items())),
        seconds=clock.seconds(),
    )


def count_by_partition(client: Client, table: str, batch_column: str, batch_id: str) -> dict[str, int]:
    """Rows of the batch in each partition of the table, on a replica that is in step."""
    sql = (
        f"SELECT _partition_id, count() FROM {quote_table(table)} "  # noqa: S608 - identifiers are quoted
        f"WHERE {quote(batch_column)} = {{batch:UUID}} GROUP BY _partition_id"
    )
    rows = read_in_step(client, [table], lambda reader: reader.query(sql, {"batch": batch_id}, {"final": 0}))
    return {str(partition): int(count) for partition, count in rows}


def has_views(client: Client, table: str) -> bool:
    name = split_table(table)
    rows = client.query(
        "SELECT length(dependencies_table) FROM system.tables "
        "WHERE database = {database:String} AND name = {table:String}",
        {"database": name.database or client.database, "table": name.table},
    )
    return bool(rows and rows[0][0])


def _judge(
    request: InsertRequest, failure: Failure, message: str, clock: _Clock, *, may_have_written: bool
) -> Outcome:
    # A failure before the insert leaves what earlier attempts did as unknown as it was.
    unknown = request.outcome_unknown or (may_have_written and failure.outcome_unknown)
    again = failure.kind is Kind.TRANSIENT or (
        failure.kind is Kind.UNLISTED and request.attempt < FEW_ATTEMPTS
    )
    text = f"batch {request.batch_id} for {request.table}: {message}{advise(failure.code)}"
    if again:
        return TryAgain(
            message=text,
            code=failure.code,
            seconds=clock.seconds(),
            outcome_unknown=unknown,
            too_many_parts=failure.too_many_parts,
        )
    return Refused(message=text, code=failure.code, seconds=clock.seconds(), outcome_unknown=unknown)
