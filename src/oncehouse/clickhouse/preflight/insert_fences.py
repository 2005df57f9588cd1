"""Whether an insert that comes late or again will be recognized here: sessions, and how much others write.

What begins with `check_` is pure; the readers change nothing but a session of a second's life.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import quote
from oncehouse.clickhouse.insert.block_counts import read_block_count
from oncehouse.clickhouse.insert.session_fence import explain_refusal, make_open_settings
from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.errors import ConfigurationError, OncehouseError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.table_info import TableFacts

_CONNECTIONS = 4
TRAFFIC_SECONDS = 600
_BLOCKS = (
    "SELECT max(max_block_number), countIf(modification_time < now() - {seconds:UInt32}), "
    "maxIf(max_block_number, modification_time < now() - {seconds:UInt32}) "
    "FROM system.parts WHERE database = {database:String} AND table = {table:String}"
)


def read_session_reach(client: Client) -> bool | None:
    """Whether a session that one connection opened is known on the next ones; None where sessions are off."""
    if not client.config.insert_sessions:
        return None
    session = f"oncehouse-check-{uuid.uuid4()}"
    try:
        client.query("SELECT 1", settings=make_open_settings(session))
    except OncehouseError as error:
        raise explain_refusal(error) from error.__cause__
    try:
        for _ in range(_CONNECTIONS):
            client.drop_connections()
            client.query("SELECT 1", settings={"session_id": session, "session_check": 1})
        client.query("SELECT 1", settings={"session_id": session, "session_check": 1, "close_session": 1})
    except OncehouseError as error:
        if failure_of(error).code != ErrorCode.SESSION_NOT_FOUND:
            raise
        return False
    return True


def check_sessions(reach: bool | None) -> Iterator[Finding]:
    where = "clickhouse.insert_sessions"
    if reach is None:
        yield Finding(
            level=Level.INFO,
            where=where,
            what="is off: an INSERT that comes late is kept out by its deadline and its token alone",
            advice="switch it on where one server, or a balancer that keeps a client at one, answers",
        )
    elif reach:
        yield Finding(
            level=Level.OK,
            where=where,
            what=f"a session is known on each of {_CONNECTIONS} new connections from here; "
            "executors on other machines must reach the same server",
        )
    else:
        yield Finding(
            level=Level.ERROR,
            where=where,
            what="connections of one client lead to different servers, so inserts would be refused: the session "
            "that one connection opened is not known on another",
            advice="let all clients, those on executors too, reach the same server (a balancer that goes by the "
            "client's address is not enough), or set clickhouse.insert_sessions: false",
        )


def has_block_count(client: Client, table: str, facts: TableFacts) -> bool:
    """Whether a retry can count the blocks of all writers."""
    try:
        return read_block_count(client, table, facts) is not None
    except TransientError:
        return True  # it has lost its Keeper, which is said of its replicas


def check_block_count(facts: TableFacts, user: str, *, is_counted: bool) -> Iterator[Finding]:
    if is_counted:
        return  # `check_traffic` says how many there are
    where = f"{facts.database}.{facts.table}: blocks of all writers"
    effect = (
        "so a retry counts the pipeline's own inserts alone. Other writers must not push the token of a batch out of "
        "the table's memory before it is retried, or rows that arrived in part are doubled"
    )
    if facts.engine.startswith("Shared"):
        yield Finding(
            level=Level.INFO,
            where=where,
            what=f"the engine {facts.engine} keeps no count of its blocks, {effect}",
            advice=f"let no other program write to the table, or size {facts.window_setting} for the inserts of all",
        )
        return
    source = "system.replicas" if facts.is_replicated else "system.parts"
    yield Finding(
        level=Level.WARNING,
        where=where,
        what=f"the user {user!r} may not read {source}, {effect}",
        advice=f"run: GRANT SELECT ON {source} TO {quote(user)}",
    )


def read_traffic(client: Client, facts: TableFacts) -> int | None:
    """Blocks that all writers inserted into the table lately; None where the number is unknown."""
    key = {"database": facts.database, "table": facts.table, "seconds": TRAFFIC_SECONDS}
    try:
        latest, older, before = client.query(_BLOCKS, key)[0]
    except ConfigurationError:
        return None
    # Without an older part in sight the numbers do not show when the counting began.
    return int(latest) - int(before) if older else None


def check_traffic(facts: TableFacts, blocks: int | None) -> Iterator[Finding]:
    if blocks is None or not facts.window_blocks or facts.is_replicated:
        return
    where = f"{facts.database}.{facts.table}: {facts.window_setting}"
    what = (
        f"{blocks} blocks came into the table in the last {TRAFFIC_SECONDS // 60} minutes, from all writers; "
        f"it remembers {facts.window_blocks}"
    )
    if blocks < facts.window_blocks:
        yield Finding(level=Level.OK, where=where, what=what)
        return
    yield Finding(
        level=Level.WARNING,
        where=where,
        what=f"{what}. A batch that arrived in part before its answer was lost is then parked, not completed",
        advice=f"raise {facts.window_setting} above {2 * blocks}, or let other writers insert larger blocks",
    )
