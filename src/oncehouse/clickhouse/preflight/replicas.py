"""The replicas of a replicated table: whether this one takes inserts, and what an answer from it is worth.

Facts come from `system.replicas` and the user's settings. ClickHouse drops a repeated block through Keeper,
so tokens hold on every replica; rows that one replica has confirmed may still be lost with it, and a replica
that lags behind shows fewer rows than were written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.preflight.requirements import Needs
    from oncehouse.clickhouse.table_info import TableFacts


@dataclass(frozen=True, kw_only=True)
class ReplicaFacts:
    is_readonly: bool
    is_session_expired: bool
    delay_seconds: int
    total: int
    active: int
    quorum: str
    """`insert_quorum` as the user's profile has it: a number, or `auto` for the majority."""

    @property
    def quorum_replicas(self) -> int:
        if self.quorum == "auto":
            return self.total // 2 + 1
        return int(self.quorum) if self.quorum.isdigit() else 0


def read_replicas(client: Client, table: TableFacts) -> ReplicaFacts | None:
    """None when the user may not look."""
    try:
        rows = client.query(
            "SELECT is_readonly, is_session_expired, absolute_delay, total_replicas, active_replicas "
            "FROM system.replicas WHERE database = {database:String} AND table = {table:String}",
            {"database": table.database, "table": table.table},
        )
    except ConfigurationError as error:
        if failure_of(error).code != ErrorCode.ACCESS_DENIED:
            raise
        return None
    if not rows:
        return None
    quorum = client.query("SELECT value FROM system.settings WHERE name = 'insert_quorum'")
    is_readonly, is_session_expired, delay, total, active = rows[0]
    return ReplicaFacts(
        is_readonly=bool(is_readonly),
        is_session_expired=bool(is_session_expired),
        delay_seconds=int(delay),
        total=int(total),
        active=int(active),
        quorum=str(quorum[0][0]) if quorum else "0",
    )


def check_replicas(facts: ReplicaFacts | None, needs: Needs) -> Iterator[Finding]:
    if facts is None:
        yield Finding(
            level=Level.WARNING,
            where=f"{needs.table}: system.replicas",
            what="the user may not see the table's replicas, so it is unknown whether this one takes inserts",
            advice="run: GRANT SELECT ON system.replicas, to the user of the pipeline file",
        )
        return
    yield _check_state(facts, needs)
    yield _check_quorum(facts, needs)


def _check_state(facts: ReplicaFacts, needs: Needs) -> Finding:
    where = f"{needs.table}: system.replicas"
    if facts.is_readonly or facts.is_session_expired:
        why = "is_readonly" if facts.is_readonly else "is_session_expired"
        return Finding(
            level=Level.ERROR,
            where=where,
            what=f"this replica takes no inserts now ({why} = 1: it has lost its Keeper)",
            advice="bring Keeper back and run SYSTEM RESTORE REPLICA where its data are gone, or name another "
            "replica in clickhouse.url",
        )
    return Finding(
        level=Level.OK,
        where=where,
        what=f"{facts.active} of {facts.total} replicas are active, this one is {facts.delay_seconds} s behind",
    )


def _check_quorum(facts: ReplicaFacts, needs: Needs) -> Finding:
    where, needed = f"{needs.table}: insert_quorum", facts.quorum_replicas
    if needed > facts.active:
        return Finding(
            level=Level.ERROR,
            where=where,
            what=f"insert_quorum = {facts.quorum} asks for {needed} replicas, {facts.active} of {facts.total} are "
            "active: every insert would be refused",
            advice="bring the replicas back, or lower insert_quorum in the user's profile",
        )
    if facts.total > 1 and needed < 2:
        return Finding(
            level=Level.WARNING,
            where=where,
            what=f"insert_quorum = {facts.quorum}: a batch counts as loaded when one of {facts.total} replicas has "
            "it, and is lost with that replica",
            advice="set insert_quorum = 'auto' in the user's profile; `oncehouse verify` would find the loss",
        )
    return Finding(
        level=Level.OK,
        where=where,
        what=f"insert_quorum = {facts.quorum} with {facts.active} of {facts.total} replicas active",
    )
