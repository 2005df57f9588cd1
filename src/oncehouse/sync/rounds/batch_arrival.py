"""Whether a batch that was kept may be sent again under its token, or its rows are in the table already.

For batches of the pipeline `clickhouse/insert/lost_answer.py` decides this, for ranges of the scheduler
`etl/steps/range_presence.py`.

Where each row carries the number of its reading, which no other batch has, the table is asked first: rows that are
there are never sent again, because the targets of materialized views may have forgotten what the table itself
remembers. Otherwise the token decides. ClickHouse forgets it after a number of blocks, whichever client inserted them,
and a replicated table after a time. Until then a repeat adds nothing. Afterwards nothing is sent where the rows cannot
be distinguished from others, because rows that come twice would stay.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.insert.block_counts import BlockCount, blocks_between, read_block_count
from oncehouse.clickhouse.insert.lost_answer import has_views
from oncehouse.clickhouse.insert.session_fence import end_session
from oncehouse.clickhouse.insert.view_proof import has_taken_token
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.errors import PermanentError
from oncehouse.messaging.clickhouse_handler import session_of
from oncehouse.sync.tables import batches

if TYPE_CHECKING:
    from oncehouse.clickhouse.table_info import TableFacts
    from oncehouse.sync.model.model_sync import ModelSync
    from oncehouse.sync.rounds.pending_batch import PendingBatch

_log = logging.getLogger(__name__)

# By how much the clocks of the database and of ClickHouse may differ before the query log is not understood.
_CLOCKS_SECONDS = 3600.0


def read_count(sync: type[ModelSync]) -> str | None:
    """How many blocks the table has taken before a batch is sent; None where it keeps no count."""
    count = read_block_count(sync.open_clickhouse(), sync.declaration().table, sync.describe_table())
    return None if count is None else str(count)


def needs_no_resend(sync: type[ModelSync], kept: PendingBatch) -> bool:
    """True: the table has its rows. False: it may be sent again, because the table drops or lacks them.

    PermanentError where neither can be known.
    """
    client, declared = sync.open_clickhouse(), sync.declaration()
    facts = describe_table(client, declared.table)
    column = declared.engine.number_column()
    is_counted = column is not None and facts is not None and not facts.merges_rows
    found = _count_rows(sync, kept, column) if is_counted and column is not None else 0
    if is_counted and found == kept.block.num_rows:
        _warn_of_views(sync, kept)
        return True
    now = read_block_count(client, declared.table, facts)
    if not may_forget_pending_batch(facts, kept, now, seconds_ahead=client.config.insert_timeout):
        return False
    if not is_counted or facts is None or facts.expires_rows:
        raise _unknown(
            sync, kept, "its engine merges or drops rows, or these do not say which batch they came with"
        )
    if not client.config.insert_sessions:
        raise _unknown(sync, kept, "without insert_sessions its INSERT may still be on its way")
    if found:
        raise _unknown(sync, kept, f"{found} of its rows are there")
    return False


def _count_rows(sync: type[ModelSync], kept: PendingBatch, column: str) -> int:
    """The batch's rows in the table, once no INSERT of it can begin any more."""
    client, table = sync.open_clickhouse(), sync.declaration().table
    if client.config.insert_sessions:
        end_session(client, session_of(table, kept.batch_id))
    sql = (
        f"SELECT count() FROM {quote_table(table)} "  # noqa: S608 - identifiers are quoted
        f"WHERE {quote(column)} = {{number:UInt64}}"
    )
    rows = read_in_step(client, [table], lambda reader: reader.query(sql, {"number": kept.number}))
    return int(rows[0][0])


def _warn_of_views(sync: type[ModelSync], kept: PendingBatch) -> None:
    client, declared = sync.open_clickhouse(), sync.declaration()
    if not has_views(client, declared.table):
        return
    if has_taken_token(client, kept.batch_id, since=time.time() - kept.age_seconds - _CLOCKS_SECONDS):
        return
    _log.warning(
        "Sync %s: the answer to the INSERT of batch %s was lost, and its %d rows are in %s. Nothing shows whether the "
        "materialized views behind the table have taken them. Compare a view's target with the rows where %s = %d; "
        "where it lacks them, insert what the view selects of them.",
        declared.name,
        kept.batch_id,
        kept.block.num_rows,
        declared.table,
        declared.engine.number_column(),
        kept.number,
    )


def may_forget_pending_batch(
    facts: TableFacts | None, kept: PendingBatch, now: BlockCount | None, *, seconds_ahead: float
) -> bool:
    """Whether the table may have lost the token since the batch was kept, or may before a repeat is done.

    Where the table kept no count then, only time counts: other writers are not seen.
    """
    before = BlockCount.parse(kept.block_count)
    blocks = 0 if before is None else blocks_between(before, now)
    if facts is None or blocks is None or kept.age_seconds < 0:
        return True
    return not facts.remembers(
        blocks_since=blocks, seconds_since=kept.age_seconds, seconds_ahead=seconds_ahead
    )


def _unknown(sync: type[ModelSync], kept: PendingBatch, why: str) -> PermanentError:
    declared = sync.declaration()
    forget = f"DELETE FROM {batches.name} WHERE sync = '{declared.name}'"  # noqa: S608 - to be read
    return PermanentError(
        f"Sync {declared.name}: whether {declared.table} has the {kept.block.num_rows} rows of batch {kept.batch_id} "
        "is unknown: the answer to its INSERT was lost, the table may have forgotten its token since, and "
        f"{why}. Nothing is sent. Run {forget} in the sync's database, and then `oncehouse sync verify --repair`, "
        "which compares the table with the database and sends what is missing."
    )
