"""One attempt to insert one batch into its table: at most one INSERT, of one block, that can be repeated.

Holds: the same rows in the same order go out as one Arrow record batch with the batch id as their token, so the table
itself drops what it has; earlier attempts are ended before anything else; after an attempt whose answer was lost the
table is read before and after, and a batch that is there is never sent again (`lost_answer.py`). The caller keeps the
catalog: the query id is written there before `insert_batch` is called, and what an outcome means for the batch is the
caller's decision (`pipeline/load/insert_task.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.errors import Failure, FailureKind
from oncehouse.clickhouse.insert.deadline import LOOKUP_TIMEOUT_SECONDS, Deadline, read_moment
from oncehouse.clickhouse.insert.lost_answer import (
    FEW_ATTEMPTS,
    check_after_retry,
    check_before_retry,
    end_attempts,
)
from oncehouse.clickhouse.insert.outcome import (
    Inserted,
    InsertOutcome,
    InsertRequest,
    Refused,
    Retryable,
    Stopwatch,
)
from oncehouse.clickhouse.insert.repeatable_block import batch_id_array, encode_block, repeatable_settings
from oncehouse.clickhouse.insert.session_fence import advise, make_renewal_settings, session_settings
from oncehouse.common.query_ids import attempt_query_id
from oncehouse.errors import OncehouseError

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client


def insert_batch(client: Client, request: InsertRequest, rows: pa.Table) -> InsertOutcome:
    """Insert the batch, or say why not. Failures of the server are outcomes, not exceptions."""
    stopwatch = Stopwatch()
    if (mismatch := _find_mismatch(request, rows)) is not None:
        return Refused(
            message=mismatch, code=None, seconds=stopwatch.seconds(), outcome_unknown=request.outcome_unknown
        )
    if request.rows == 0:
        return Inserted(rows=0, seconds=0.0)
    may_have_written = request.outcome_unknown
    try:
        what = f"batch {request.batch_id} for {request.table}"
        end_attempts(client, what, request.earlier_query_ids, request.earlier_sessions)
        # Before the table is read: encoding is not taken from the time to send.
        stream = encode(request, rows)
        deadline = request.deadline
        if request.outcome_unknown:
            if (settled := check_before_retry(_in_session(client, request), request, stopwatch)) is not None:
                return settled
            deadline = _renew(client, request)
        settings = repeatable_settings(
            client, request.batch_id, attempt_query_id(request.batch_id, request.attempt)
        )
        if request.session is not None:
            settings = {**settings, **session_settings(request.session)}
        may_have_written = True
        # The outcome has how long the INSERT took, and so when it began.
        stopwatch = Stopwatch()
        columns = (*request.columns, request.batch_column)
        client.insert_arrow(request.table, columns, stream, settings, deadline)
        if request.outcome_unknown:
            return check_after_retry(client, request, stopwatch)
    except OncehouseError as error:
        return _classify(request, failure_of(error), str(error), stopwatch, may_have_written=may_have_written)
    return Inserted(rows=request.rows, seconds=stopwatch.seconds())


def classify_unsent(request: InsertRequest, error: OncehouseError) -> InsertOutcome:
    """The outcome of an attempt that failed before its INSERT could be sent."""
    return _classify(request, failure_of(error), str(error), Stopwatch(), may_have_written=False)


def encode(request: InsertRequest, rows: pa.Table) -> pa.Buffer:
    """The batch as an Arrow stream of exactly one record batch: it arrives whole or not at all."""
    table = rows.select(list(request.columns)).combine_chunks()
    table = table.append_column(request.batch_column, batch_id_array(request.batch_id, rows.num_rows))
    return encode_block(table.to_batches()[0])


def _find_mismatch(request: InsertRequest, rows: pa.Table) -> str | None:
    where = f"batch {request.batch_id} for {request.table}"
    if rows.num_rows != request.rows:
        return f"{where} has {request.rows} rows, but its parts hold {rows.num_rows}; run `oncehouse verify`"
    if missing := [name for name in request.columns if name not in rows.column_names]:
        return f"{where}: its parts have no column {missing[0]!r}; run `oncehouse verify`"
    if any(column.nbytes >= 1 << 31 for column in rows.columns):
        return f"{where}: a column of 2 GiB cannot be sent as one block; lower batch.max_bytes"
    return None


def _in_session(client: Client, request: InsertRequest) -> Client:
    """Each statement of a long check keeps the session of the attempt open."""
    if request.session is None:
        return client
    return client.with_settings(make_renewal_settings(request.session))


def _renew(client: Client, request: InsertRequest) -> Deadline | None:
    """Until when the INSERT may leave, after a check that may have taken long.

    The next attempt ends this one's session before it decides anything. While the server knows the session, no other
    process has taken over, and time may count from here; without sessions only the old deadline shows that.
    """
    deadline, now = request.deadline, read_moment()
    if deadline is None or request.session is None or deadline.elapsed(now) > LOOKUP_TIMEOUT_SECONDS:
        return deadline
    client.query("SELECT 1", settings=make_renewal_settings(request.session))
    return Deadline(began=now, seconds=deadline.seconds)


def _classify(
    request: InsertRequest, failure: Failure, message: str, stopwatch: Stopwatch, *, may_have_written: bool
) -> InsertOutcome:
    # A failure before the insert leaves what earlier attempts did as unknown as it was.
    unknown = request.outcome_unknown or (may_have_written and failure.outcome_unknown)
    may_retry = failure.kind is FailureKind.TRANSIENT or (
        failure.kind is FailureKind.UNLISTED and request.attempt < FEW_ATTEMPTS
    )
    text = f"batch {request.batch_id} for {request.table}: {message}{advise(failure.code)}"
    if may_retry:
        return Retryable(
            message=text,
            code=failure.code,
            seconds=stopwatch.seconds(),
            outcome_unknown=unknown,
            too_many_parts=failure.too_many_parts,
        )
    return Refused(message=text, code=failure.code, seconds=stopwatch.seconds(), outcome_unknown=unknown)
