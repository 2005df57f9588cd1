"""Loads one batch: one attempt, one Spark task, one INSERT, and what its outcome means for the batch.

The task reads the live rows of the batch's parts, in their order, and sends them. Before it starts the driver opens
the attempt's session (`attempt.py`) and then writes the attempt to the catalog: the next holder of the lease finds
both, and can end what may still be under way. When the task has ended, the driver writes the outcome to the catalog.
`classify_outcome` is pure: outcome in, status and back-off out. Whether a retry sends rows again is decided in
`clickhouse/insert/lost_answer.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

import pyarrow as pa

from oncehouse.clickhouse import error_codes
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert.deadline import SEND_WITHIN_SECONDS, Deadline, read_moment
from oncehouse.clickhouse.insert.insert_batch import classify_unsent, insert_batch
from oncehouse.clickhouse.insert.outcome import (
    AlreadyThere,
    Inserted,
    InsertOutcome,
    InsertRequest,
    PartlyThere,
    Refused,
    Retryable,
)
from oncehouse.clickhouse.table_info import TableFacts
from oncehouse.common import failpoints
from oncehouse.common.backoff import Backoff
from oncehouse.common.tracing import add_attributes, fail, span
from oncehouse.config.pipeline import ClickHouse, Pipeline, Retry, Table
from oncehouse.errors import (
    ConfigurationError,
    CorruptFileError,
    OncehouseError,
    PermanentError,
    TransientError,
)
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.marks import Sending, write_mark
from oncehouse.ledger.models import Attempt, AttemptOutcome, BatchStatus, LedgerBatch, LoadPart, Stage
from oncehouse.ledger.storage.file_store import NO_SPACE, FileStore
from oncehouse.pipeline.dedup.deduplicate import live_events
from oncehouse.pipeline.formats.base import EVENT_COLUMN
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.load.attempt import OpenedAttempt, is_doubtful, open_attempt, open_sessions
from oncehouse.pipeline.load.insert_rate import InsertAnswer
from oncehouse.pipeline.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """All that a load task needs; it travels to a Spark worker."""

    clickhouse: ClickHouse
    request: InsertRequest
    parts: tuple[LoadPart, ...]
    files_root: str


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """What an attempt's outcome makes of its batch."""

    status: BatchStatus
    outcome: AttemptOutcome
    detail: str | None = None
    wait_seconds: float = 0.0
    answer: InsertAnswer = InsertAnswer.TAKEN
    seconds: float = 0.0
    """How long the insert took."""


def send_batch(plan: LoadPlan) -> InsertOutcome:
    """The work of one load task. Damage in the ledger's own files is an outcome too, not a crash.

    A task that Spark runs once more sends nothing. What its first run did cannot be known here, and its session may
    be used up: the next attempt ends both, and counts the rows in the table.
    """
    unknown = plan.request.outcome_unknown
    if is_repeated():
        return Retryable(
            message=f"batch {plan.request.batch_id} for {plan.request.table}: Spark ran the load task once more, so "
            "its first run was lost, and whether that sent the rows is not known. The next attempt looks",
            code=None,
            seconds=0.0,
            outcome_unknown=True,
            too_many_parts=False,
        )
    deadline = plan.request.deadline and plan.request.deadline.counted_here(read_moment())
    try:
        rows = live_rows(FileStore(plan.files_root), plan.parts)
    except (ConfigurationError, TransientError) as error:
        return Retryable(
            message=str(error),
            code=None,
            seconds=0.0,
            outcome_unknown=unknown,
            too_many_parts=False,
            misconfigured=isinstance(error, ConfigurationError),
        )
    except OncehouseError as error:
        return Refused(message=str(error), code=None, seconds=0.0, outcome_unknown=unknown)
    # What goes out is what the parts hold, whatever the pipeline file says by now.
    request = replace(plan.request, columns=tuple(rows.column_names), deadline=deadline)
    return insert_batch(connect(plan.clickhouse), request, rows)


def is_repeated() -> bool:
    """Whether this is a Spark task that was run before: a lost executor, a worker that died, speculation."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def live_rows(store: FileStore, parts: Sequence[LoadPart]) -> pa.Table:
    """First-seen rows of the parts, in order: the same ones each time, for parts never change."""
    tables = []
    for load in parts:
        rows = read_rows(store, load.part.file)
        if load.part.live_rows < load.part.rows:
            live = live_events(store, load.duplicate_files, ordinal=load.part.ordinal, events=load.events)
            rows = rows.filter(pa.array(live[rows.column(EVENT_COLUMN).to_numpy()]))
        if rows.num_rows != load.part.live_rows:
            raise CorruptFileError(
                f"Part {load.part.part} has {rows.num_rows} live rows, the catalog knows {load.part.live_rows}. "
                "Run `oncehouse verify --files` to see which file is damaged."
            )
        tables.append(rows.drop_columns(EVENT_COLUMN))
    try:
        return pa.concat_tables(tables).unify_dictionaries()
    except pa.ArrowInvalid as error:
        raise PermanentError(f"the parts of the batch have different columns: {error}") from error


def classify_outcome(outcome: InsertOutcome, *, attempt: int, retry: Retry, jitter: float) -> AttemptResult:
    """The status of the batch. `jitter` (0 to 1) spreads retries over the whole back-off."""
    match outcome:
        case Inserted():
            return AttemptResult(
                status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED, seconds=outcome.seconds
            )
        case AlreadyThere(views_unproven=True):
            return AttemptResult(
                status=BatchStatus.IN_CLICKHOUSE,
                outcome=AttemptOutcome.VIEWS_UNPROVEN,
                detail="found by its batch id; nothing shows whether the table's materialized views have its rows",
            )
        case AlreadyThere():
            return AttemptResult(status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.ALREADY_THERE)
        case Retryable():
            backoff = Backoff(base_seconds=retry.base, longest_seconds=retry.longest)
            return AttemptResult(
                status=BatchStatus.RETRY,
                outcome=_failed_or_unknown(outcome),
                detail=outcome.message,
                wait_seconds=backoff.wait_seconds(attempt, jitter=jitter),
                answer=_insert_answer(outcome),
                seconds=outcome.seconds,
            )
        case Refused():
            return AttemptResult(
                status=BatchStatus.PARKED,
                outcome=_failed_or_unknown(outcome),
                detail=outcome.message,
            )
        case PartlyThere():
            return AttemptResult(
                status=BatchStatus.PARKED, outcome=AttemptOutcome.UNKNOWN, detail=outcome.message
            )
    assert_never(outcome)


def _failed_or_unknown(outcome: Retryable | Refused) -> AttemptOutcome:
    return AttemptOutcome.UNKNOWN if outcome.outcome_unknown else AttemptOutcome.FAILED


def _insert_answer(outcome: Retryable) -> InsertAnswer:
    if outcome.too_many_parts:
        return InsertAnswer.TOO_MANY_PARTS
    return InsertAnswer.TOO_LARGE if outcome.code in error_codes.TOO_LARGE else InsertAnswer.FAILED


def plan_load(
    pipeline: Pipeline,
    table: Table,
    batch: LedgerBatch,
    attempt: Attempt,
    *,
    catalog: Catalog,
    facts: TableFacts | None,
    opened: OpenedAttempt,
) -> LoadPlan:
    earlier = batches.list_attempts(catalog, batch.batch_id)[: attempt.attempt - 1]
    doubtful = tuple(past for past in earlier if past.may_have_sent)
    merges_rows = facts is None or facts.loses_rows
    attempts_since = 0
    if doubtful and merges_rows:
        attempts_since = batches.count_attempts(catalog, table.name, since=doubtful[0].started_at)
    return LoadPlan(
        clickhouse=pipeline.clickhouse,
        files_root=pipeline.ledger.files,
        parts=batches.load_parts(catalog, batch.batch_id),
        request=InsertRequest(
            table=table.name,
            columns=(),
            batch_column=table.batch_column,
            batch_id=batch.batch_id,
            attempt=attempt.attempt,
            rows=batch.rows,
            earlier_query_ids=tuple(past.query_id for past in earlier),
            earlier_began=doubtful[0].started_at if doubtful else None,
            clock_difference=pipeline.max_clock_difference,
            attempts_since=attempts_since,
            outcome_unknown=bool(doubtful),
            may_be_forgotten=bool(doubtful)
            and is_doubtful(pipeline, catalog, facts, table.name, doubtful, attempt),
            merges_rows=merges_rows,
            deadline=Deadline(began=opened.began, seconds=SEND_WITHIN_SECONDS),
            session=attempt.query_id if pipeline.clickhouse.insert_sessions else None,
            earlier_sessions=open_sessions(pipeline, doubtful, attempt),
        ),
    )


def _run(spark: SparkSession, plan: LoadPlan) -> InsertOutcome:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        outcome: InsertOutcome = run_tasks(spark, send_batch, [plan])[0]
    except (Py4JError, PySparkException, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_SPACE:
            raise
        # The worker or its executor died, or Spark has no space: whether the insert had happened is not known.
        return Retryable(
            message=f"the load task died: {str(error).splitlines()[0]}",
            code=None,
            seconds=0.0,
            outcome_unknown=True,
            too_many_parts=False,
        )
    return outcome


def _mark(catalog: Catalog, token: int, plan: LoadPlan, attempt: Attempt) -> InsertOutcome | None:
    """Record outside of the catalog how far it has come: a catalog restored from a backup would not know these rows."""
    epoch = max((load.part.epoch for load in plan.parts), default=0)
    try:
        write_mark(
            catalog, FileStore(plan.files_root), Stage.LOAD, token, Sending(attempt=attempt, epoch=epoch)
        )
    except TransientError as error:
        return classify_unsent(plan.request, error)
    return None


def load(
    spark: SparkSession,
    pipeline: Pipeline,
    catalog: Catalog,
    token: int,
    batch: LedgerBatch,
    *,
    facts: TableFacts | None,
) -> AttemptResult:
    """One attempt at one batch, from the catalog to ClickHouse and back to the catalog.

    Raises ConfigurationError where this machine keeps the files of the batch from being read.
    """
    table = next(found for found in pipeline.tables if found.name == batch.table)
    opened = open_attempt(pipeline, batch, facts)
    count = None if opened.count is None else str(opened.count)
    attempt = batches.start_attempt(catalog, token, batch.batch_id, block_count=count)
    plan = plan_load(pipeline, table, batch, attempt, catalog=catalog, facts=facts, opened=opened)
    if opened.error is not None:
        unsent: InsertOutcome | None = classify_unsent(plan.request, opened.error)
    else:
        unsent = _mark(catalog, token, plan, attempt)
    failpoints.reach("before inserting")
    about = {"pipeline": pipeline.pipeline, "batch": batch.batch_id, "table": batch.table}
    with span("insert", **about, attempt=attempt.attempt, query_id=attempt.query_id) as insert:
        outcome = unsent or _run(spark, plan)
        # Jitter only spreads load; it need not be unpredictable.
        jitter = random.random()  # noqa: S311
        result = classify_outcome(outcome, attempt=attempt.attempt, retry=pipeline.retry, jitter=jitter)
        add_attributes(insert, outcome=result.outcome)
        if result.status is not BatchStatus.IN_CLICKHOUSE:
            fail(insert, result.detail or result.outcome)
    failpoints.reach("after inserting")
    batches.finish_attempt(
        catalog,
        token,
        attempt,
        status=result.status,
        outcome=result.outcome,
        detail=result.detail,
        wait_seconds=result.wait_seconds,
    )
    if isinstance(outcome, Retryable) and outcome.misconfigured:
        raise ConfigurationError(outcome.message)  # the batch waits for the next run
    return result
