"""What `check` can see of reads that decide: whether a replica can be waited for, and which servers answer.

How such reads are made is `clickhouse/replica_sync.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import quote
from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.clickhouse.replica_sync import (
    WAIT_SECONDS,
    has_sequential_quorum,
    is_over_replicas,
    read_state,
)
from oncehouse.clickhouse.server_info import is_granted
from oncehouse.clickhouse.server_names import HEADER, NO_NAME, collect_server_names
from oncehouse.clickhouse.table_engines import read_engines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.table_engines import TableEngine

_QUESTIONS = 4
"""Of how many answers it is looked which servers gave them; those of a balancer that keeps a client are all alike."""


@dataclass(frozen=True, kw_only=True)
class ReplicaReads:
    user: str
    table: str
    """As it stands in SQL."""
    replicas: int
    """0: unknown."""
    can_sync: bool
    is_sequential: bool
    is_shared: bool
    header_names: frozenset[str]
    """Names of servers in the headers of answers."""
    servers: frozenset[tuple[str, str]]
    """(name, uuid) of those servers by their own word."""


def inspect_reads(client: Client, tables: Iterable[str]) -> tuple[Finding, ...]:
    """What stands in the way of reads that decide, of any tables; nothing of those without replicas."""
    found: list[Finding] = []
    for engine in read_engines(client, tables):
        where = f"{engine.name}: reads that decide"
        if engine.has_replicas:
            found += check_replica_reads(read_replica_reads(client, engine), where)
        elif engine.is_distributed and is_over_replicas(client, engine) and not has_sequential_quorum(client):
            found.append(
                Finding(
                    level=Level.ERROR,
                    where=where,
                    what=f"it is Distributed over the cluster {engine.cluster!r}, whose shards have several replicas, "
                    "and which of them answers cannot be known",
                    advice="name the table behind it, or write with insert_quorum and insert_quorum_parallel = 0",
                )
            )
    return tuple(finding for finding in found if finding.level is not Level.OK)


def read_replica_reads(client: Client, table: TableEngine) -> ReplicaReads:
    quoted = table.quoted
    with collect_server_names() as names:
        servers = {
            (str(name), str(uuid))
            for _ in range(_QUESTIONS)
            for name, uuid in client.query("SELECT displayName(), toString(serverUUID())")
        }
    state = None if table.is_shared else read_state(client, table)
    return ReplicaReads(
        replicas=0 if state is None else state.total,
        user=client.config.user,
        table=quoted,
        can_sync=is_granted(client, f"SYSTEM SYNC REPLICA ON {quoted}", unknown=True),
        is_sequential=has_sequential_quorum(client),
        is_shared=table.is_shared,
        header_names=frozenset(names),
        servers=frozenset(servers),
    )


def check_replica_reads(reads: ReplicaReads, where: str) -> Iterator[Finding]:
    if reads.replicas == 1:
        yield Finding(
            level=Level.OK, where=where, what="the table has one replica, which has all of its rows"
        )
        return
    if reads.can_sync:
        how = "SYSTEM SYNC REPLICA … LIGHTWEIGHT"
        if reads.is_sequential or reads.is_shared:
            how += " and select_sequential_consistency = 1"
        yield Finding(
            level=Level.OK,
            where=where,
            what=f"reads that decide use {how}, and wait {WAIT_SECONDS:.0f} s for it",
        )
    else:
        yield Finding(
            level=Level.WARNING,
            where=where,
            what=f"the user {reads.user!r} may not wait until a replica has all rows, so with several replicas a batch "
            "of unknown outcome waits for this right, and verify, replay and repair refuse",
            advice=f"run: GRANT SYSTEM SYNC REPLICA ON {reads.table} TO {quote(reads.user)}",
        )
    yield from _check_servers(reads, where)


def _check_servers(reads: ReplicaReads, where: str) -> Iterator[Finding]:
    names = sorted({name for name, _ in reads.servers})
    if NO_NAME in reads.header_names and not reads.is_shared:
        yield Finding(
            level=Level.WARNING,
            where=where,
            what=f"answers come without the header {HEADER}, so that servers behind this url cannot be distinguished",
            advice="let the proxy before ClickHouse pass that header, or name a server itself in clickhouse.url",
        )
    elif len(names) < len(reads.servers):
        # A process learns of the second only after it has believed the first.
        yield Finding(
            level=Level.ERROR,
            where=where,
            what=f"several servers answer under one name ({', '.join(names)}), so that they cannot be distinguished",
            advice="give each server a display_name of its own in its configuration",
        )
    elif len(names) > 1:
        yield Finding(
            level=Level.OK,
            where=where,
            what=f"several servers answer behind this url ({', '.join(names)}); a decision asks one that has all rows",
        )
