"""A retry after a lost answer: whether it sends the batch again, decided by what the table holds.

An attempt whose answer was lost may have inserted its rows. The next one ends what is left of it (`end_attempts`),
counts the batch's rows in the table and decides (`decide_retry`): insert again under the same token, take the batch
for inserted, or stop because the table holds a part of it. Whether the table still remembers the token is known from
`pipeline/load/attempt.py`; that an answer was lost is known from the catalog (`Attempt.may_have_sent`), from which
`pipeline/load/insert_task.py` makes the request's `outcome_unknown`.

The same question has other answers elsewhere. Model sync counts rows by the number of their reading
(`sync/rounds/batch_arrival.py`), the scheduler by the positions of a range (`find_presence` of
`etl/steps/range_presence.py`), when the table may have forgotten the token. The batch consumer's handler
(`messaging/clickhouse_handler.py`) cannot distinguish the rows of a batch from others. It counts the blocks that came
since the batch was first sent. It sends the batch again only where the table and the targets of its views still know
the token.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import quote, quote_table, split_table
from oncehouse.clickhouse.insert.outcome import (
    AlreadyThere,
    Inserted,
    InsertOutcome,
    InsertRequest,
    PartlyThere,
    Retryable,
    Stopwatch,
)
from oncehouse.clickhouse.insert.session_fence import end_session
from oncehouse.clickhouse.insert.view_memory import find_forgetful_target
from oncehouse.clickhouse.insert.view_proof import has_finished
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncehouse.clickhouse.client import Client

FEW_ATTEMPTS = 5
"""How often an attempt is repeated after a failure of unknown kind, or while its rows do not show up."""


class RetryDecision(StrEnum):
    INSERT = "insert"
    ALREADY_THERE = "already there"
    PARTLY_THERE = "partly there"


def decide_retry(request: InsertRequest, *, found: int, finished: bool = False) -> RetryDecision:
    """What to do when earlier attempts are ended and the table holds `found` rows of the batch.

    - All rows: they are never sent again, whatever is known of the token, because views are proven in other ways.
    - A part of them: the batch is sent again if the table surely remembers its token and so drops what it has. Of a
      table that merges rows they are all that is left of it where an earlier attempt is known to have `finished`.
    - None: it is sent again, unless the token may be forgotten and the table merges rows away.
    """
    if found > request.rows:
        return RetryDecision.PARTLY_THERE
    if found == request.rows or (request.merges_rows and found > 0 and finished):
        return RetryDecision.ALREADY_THERE
    if not request.may_be_forgotten:
        return RetryDecision.INSERT
    # A table that merges rows away may have taken in all of them and show none: a count of zero proves nothing.
    return RetryDecision.INSERT if found == 0 and not request.merges_rows else RetryDecision.PARTLY_THERE


def end_attempts(client: Client, what: str, query_ids: Sequence[str], sessions: Sequence[str]) -> None:
    """Make sure that no INSERT of these attempts runs or can begin; raises TransientError while one does.

    `what` names them in the error. An INSERT whose body is still arriving shows by its session alone.
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


def check_before_retry(client: Client, request: InsertRequest, stopwatch: Stopwatch) -> InsertOutcome | None:
    """The outcome that the rows in the table already decide; None if the batch is to be sent."""
    partitions = count_by_partition(client, request.table, request.batch_column, request.batch_id)
    found = sum(partitions.values())
    viewed = (request.merges_rows or found == request.rows) and has_views(client, request.table)
    # Of a table that merges rows a count below all of them is usual; the log is asked where sending again may harm.
    reads_log = 0 < found <= request.rows and (viewed or (request.merges_rows and request.may_be_forgotten))
    finished = reads_log and has_finished(client, request.earlier_query_ids, since=request.earlier_began)
    match decide_retry(request, found=found, finished=finished):
        case RetryDecision.INSERT:
            if viewed and (target := find_forgetful_target(client, request, found=found)) is not None:
                why = f"and {target}, to which a materialized view writes them, may have forgotten its token"
                return _partly_there(request, partitions, stopwatch, why)
            return None
        case RetryDecision.ALREADY_THERE:
            return AlreadyThere(
                rows=found, seconds=stopwatch.seconds(), views_unproven=viewed and not finished
            )
        case RetryDecision.PARTLY_THERE:
            return _partly_there(request, partitions, stopwatch, "and its token may be forgotten")


def check_after_retry(client: Client, request: InsertRequest, stopwatch: Stopwatch) -> InsertOutcome:
    """Count the rows once more after a repeated INSERT was accepted.

    A server killed between writing down a token and publishing the rows could remember one without rows,
    and drop every repeat of the batch silently.
    """
    partitions = count_by_partition(client, request.table, request.batch_column, request.batch_id)
    found = sum(partitions.values())
    if found == request.rows or (request.merges_rows and 0 < found < request.rows):
        return Inserted(rows=request.rows, seconds=stopwatch.seconds())
    if found > request.rows or request.attempt >= FEW_ATTEMPTS:
        return _partly_there(request, partitions, stopwatch, "although the insert was accepted")
    return Retryable(
        message=f"batch {request.batch_id}: {found} of {request.rows} rows are visible in {request.table} "
        "after an accepted insert; a replica may lag behind",
        code=None,
        seconds=stopwatch.seconds(),
        outcome_unknown=True,
        too_many_parts=False,
    )


def _partly_there(
    request: InsertRequest, partitions: dict[str, int], stopwatch: Stopwatch, why: str
) -> PartlyThere:
    found = sum(partitions.values())
    shown = ", ".join(f"{name}: {count}" for name, count in sorted(partitions.items())[:20])
    advice = (
        "The table merges rows, so what it lacks is unknown. If the server's query log has the insert and this "
        "user may read it (GRANT SELECT ON system.query_log), `oncehouse batches retry` settles the batch; else "
        "truncate the table and what its materialized views write to, or take a new table, and let `oncehouse replay "
        "--table` fill it"
        if request.merges_rows
        else "Delete the batch's rows from the table, and what materialized views made of them, then let `oncehouse "
        "replay --table` send them again under a new batch id"
    )
    return PartlyThere(
        message=f"batch {request.batch_id}: {request.table} holds {found} of its {request.rows} rows {why} "
        f"(rows by partition: {shown or 'none'}). {advice}",
        found=found,
        rows=request.rows,
        partitions=tuple(sorted(partitions.items())),
        seconds=stopwatch.seconds(),
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
