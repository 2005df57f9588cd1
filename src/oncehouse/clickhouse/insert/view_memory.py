"""Whether what the materialized views of a table write to still remembers the token of a batch.

A table that drops a repeated block hands it to its views all the same, and each of their targets drops it by its own
memory. A target may take more blocks than the table: other views write to it, or one block of the table touches many of
its partitions. How many came since a moment is read from its parts, with errors on the safe side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.insert.block_counts import most_own_blocks
from oncehouse.clickhouse.preflight.views import read_views
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.insert.outcome import InsertRequest
    from oncehouse.clickhouse.table_info import TableFacts

# Parts that were there before the moment show the last block before it. Merged parts are newer, so what they hold may
# be counted although it came before, and never the other way round. Plain tables number their blocks through,
# replicated ones in each partition, from 0.
_BLOCKS = (
    "SELECT max(max_block_number), countIf(modification_time < {since:DateTime('UTC')}), "
    "maxIf(max_block_number, modification_time < {since:DateTime('UTC')}) "
    "FROM system.parts WHERE database = {database:String} AND table = {table:String} "
    "GROUP BY if({by_partition:UInt8}, partition_id, '')"
)
_CHANGED = (
    "SELECT metadata_modification_time >= {since:DateTime('UTC')}, now() - {since:DateTime('UTC')} "
    "FROM system.tables WHERE database = {database:String} AND name = {table:String}"
)


def find_forgetful_target(client: Client, request: InsertRequest, *, found: int) -> str | None:
    """What a repeat of the batch could double behind a view of its table; None where each target drops the repeat."""
    table = describe_table(client, request.table)
    if table is None:
        return request.table
    since = (
        None
        if request.earlier_began is None
        else max(0, int(request.earlier_began - request.clock_difference))
    )
    return find_forgetful_view(client, table, since=since, inserts=request.attempts_since, found=found)


def find_forgetful_view(
    client: Client, table: TableFacts, *, since: int | None, inserts: int | None, found: int
) -> str | None:
    """The target of a view that may have forgotten a token which the table got `since`, by the server's clock.

    Of a target that is not visible `check` warns. It is believed to remember where no row of the batch was `found`:
    then most likely none has arrived. So many `inserts` into the table count where a target keeps no count; it is
    believed where they are not known either.
    """
    for view in read_views(client, table):
        if view.facts is None:
            if found:
                return view.target
            continue
        if view.facts.engine == "Null":
            continue
        uncounted = 0 if inserts is None else most_own_blocks(inserts, view.facts)
        if since is None or not remembers_since(client, view.facts, since, uncounted_blocks=uncounted):
            return view.target
    return None


def remembers_since(
    client: Client, target: TableFacts, began: float, *, uncounted_blocks: int | None = None
) -> bool:
    """Whether the target will still know a token that it got at some time after `began`, by ClickHouse's clock.

    `uncounted_blocks` is what came since where the target shows no count; None: then nothing is known of it.
    """
    if not target.is_merge_tree:
        return False
    since = max(0, int(began))
    name = {"database": target.database, "table": target.table}
    changed, seconds = client.query(_CHANGED, {**name, "since": since})[0]
    if changed:
        return False  # another table may have taken the target's place, and remembers nothing
    blocks = _count_blocks(client, target, since)
    if blocks is None:
        blocks = uncounted_blocks
    return blocks is not None and target.remembers(
        blocks_since=blocks, seconds_since=float(seconds), seconds_ahead=client.insert_timeout_seconds
    )


def _count_blocks(client: Client, target: TableFacts, since: int) -> int | None:
    """At least as many as came into the target since then; None where it keeps no count or the user may not see it."""
    if target.engine.startswith("Shared"):
        return None
    parameters = {
        "database": target.database,
        "table": target.table,
        "since": since,
        "by_partition": int(target.is_replicated),
    }
    try:
        found = read_in_step(
            client, [f"{target.database}.{target.table}"], lambda reader: reader.query(_BLOCKS, parameters)
        )
    except ConfigurationError as error:
        if failure_of(error).code != ErrorCode.ACCESS_DENIED:
            raise
        return None
    first = -1 if target.is_replicated else 0
    return sum(int(latest) - (int(before) if older else first) for latest, older, before in found)
