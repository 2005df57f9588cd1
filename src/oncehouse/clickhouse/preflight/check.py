"""Is a table fit to be loaded? Facts and needs in, findings out, before any data moves.

`check_facts` is pure; `inspect` reads what it checks. Nothing on the server is changed: advice that would change
something is given as the exact statement, for a person to run. What was found right is reported too, with its
figures, at the level OK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.clickhouse.preflight.finding import Finding, Level, objections
from oncehouse.clickhouse.preflight.insert_fences import (
    check_block_count,
    check_sessions,
    check_traffic,
    has_block_count,
    read_session_reach,
    read_traffic,
)
from oncehouse.clickhouse.preflight.query_log import check_query_log, needs_query_log, read_query_log
from oncehouse.clickhouse.preflight.replica_reads import check_replica_reads, read_replica_reads
from oncehouse.clickhouse.preflight.replicas import check_replicas, read_replicas
from oncehouse.clickhouse.preflight.requirements import Needs, needs_of
from oncehouse.clickhouse.preflight.server import check_server
from oncehouse.clickhouse.preflight.table import check_columns, check_losses, check_window
from oncehouse.clickhouse.preflight.views import check_views, read_views
from oncehouse.clickhouse.server_info import read_server
from oncehouse.clickhouse.table_engines import TableEngine
from oncehouse.clickhouse.table_info import TableFacts, describe_table

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

__all__ = ["Finding", "Level", "Needs", "check_facts", "check_server", "inspect", "needs_of", "objections"]


def inspect(client: Client, needs: Needs) -> tuple[Finding, ...]:
    """Read the server and the table, and check them. Raises when the server cannot be asked."""
    facts = describe_table(client, needs.table)
    found = check_server(read_server(client, needs), needs) + check_facts(facts, needs)
    if facts is None or not facts.is_merge_tree:
        return found
    found += tuple(check_sessions(read_session_reach(client)))
    counted = has_block_count(client, needs.table, facts)
    found += tuple(check_block_count(facts, client.config.user, is_counted=counted))
    if not facts.is_replicated:
        found += tuple(check_traffic(facts, read_traffic(client, facts)))
    if needs_query_log(facts):
        found += tuple(check_query_log(facts, read_query_log(client)))
    views = tuple(check_views(read_views(client, facts), needs))
    if not facts.is_replicated:
        return found + views
    engine = TableEngine(
        database=facts.database, table=facts.table, engine=facts.engine, engine_full=facts.engine
    )
    reads = tuple(
        check_replica_reads(read_replica_reads(client, engine), f"{needs.table}: reads that decide")
    )
    # A Shared table keeps its parts in one place for all servers, and has no replicas of its own.
    if not facts.engine.startswith("Replicated"):
        return found + views + reads
    return found + views + tuple(check_replicas(read_replicas(client, facts), needs)) + reads


def check_facts(facts: TableFacts | None, needs: Needs) -> tuple[Finding, ...]:
    if facts is None:
        return (
            Finding(
                level=Level.ERROR,
                where=needs.table,
                what="the table does not exist, or the user may not see it",
                advice="run `oncehouse table create`, which shows its statement first",
            ),
        )
    if not facts.is_merge_tree:
        return (
            Finding(
                level=Level.ERROR,
                where=needs.table,
                what=f"the engine {facts.engine} cannot distinguish a repeated insert from a new one",
                advice="name a table of the MergeTree family; for a Distributed table, the one behind it",
            ),
        )
    return (
        *check_columns(facts, needs),
        *check_window(facts, needs.window, table=needs.table),
        *check_losses(facts, needs),
    )
