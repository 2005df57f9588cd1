"""Over how many servers a table is spread, and what of the scheduler's work reaches only one of them.

A reload exchanges tables, which is a statement of one server unless the database itself replicates its statements.
What cannot reach every replica is refused before anything is built. Reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import split_table
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.topic import LatePolicy, Template, Topic

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

_REPLICATED = ("Replicated", "Shared")
_HOLDS_NOTHING = frozenset(
    {"Distributed", "Buffer", "Merge", "View", "MaterializedView", "KeeperMap", "Kafka", "Alias"}
)
"""Engines whose rows stand elsewhere: a table made AS one of them is the same rows under another name."""


@dataclass(frozen=True, kw_only=True)
class TableReplication:
    """Where a table stands."""

    engine: str
    database_engine: str
    replicas: int = 1
    """Servers that hold the table, as far as the user may see."""

    @property
    def shares_rows(self) -> bool:
        return self.engine.startswith(_REPLICATED)

    @property
    def shares_statements(self) -> bool:
        """What one server creates, exchanges or drops, all do."""
        return self.database_engine in _REPLICATED


def read_replication(client: Client, tables: Iterable[str]) -> dict[str, TableReplication]:
    """Of those of the tables that exist."""
    names = {table: split_table(table) for table in tables}
    keys = {(name.database or client.database, name.table): table for table, name in names.items()}
    bound = {"databases": [key[0] for key in keys], "names": [key[1] for key in keys]}
    rows = client.query(
        "SELECT t.database, t.name, t.engine, d.engine FROM system.tables AS t "
        "INNER JOIN system.databases AS d ON t.database = d.name "
        "WHERE t.database IN {databases:Array(String)} AND t.name IN {names:Array(String)}",
        bound,
    )
    found = {keys[row[0], row[1]]: row for row in rows if (row[0], row[1]) in keys}
    if not any(one[2].startswith(_REPLICATED) or one[3] in _REPLICATED for one in found.values()):
        return {
            table: TableReplication(engine=engine, database_engine=kind)
            for table, (_, _, engine, kind) in found.items()
        }
    by_table = _read_replicas(
        client,
        "SELECT database, table, total_replicas FROM system.replicas "
        "WHERE database IN {databases:Array(String)} AND table IN {names:Array(String)}",
        bound,
    )
    # A database that replicates its statements is a cluster of its own name.
    by_database = _read_replicas(
        client,
        "SELECT cluster, '', count() FROM system.clusters WHERE cluster IN {databases:Array(String)} GROUP BY cluster",
        {"databases": bound["databases"]},
    )
    return {
        table: TableReplication(
            engine=engine,
            database_engine=kind,
            replicas=max(by_table.get((database, name), 1), by_database.get((database, ""), 1)),
        )
        for table, (database, name, engine, kind) in found.items()
    }


def _read_replicas(client: Client, sql: str, bound: dict[str, list[str]]) -> dict[tuple[str, str], int]:
    try:
        rows = client.query(sql, bound)
    except ConfigurationError as error:
        if failure_of(error).code != ErrorCode.ACCESS_DENIED:
            raise
        return {}
    return {(str(database), str(table)): int(count) for database, table, count in rows}


def explain_one_sided(topic: Topic, spread: TableReplication) -> tuple[str, str] | None:
    """What of the topic's work would reach one server only, and what to do; None when nothing would."""
    if topic.template is Template.RELOAD and spread.engine in _HOLDS_NOTHING:
        return (
            f"{topic.dst} has the engine {spread.engine}: what a reload builds like it would have the same rows",
            "name the table that holds the rows as `dst`, or use the template step",
        )
    if spread.replicas <= 1:
        return None
    what = f"{topic.dst} ({spread.engine}, database {spread.database_engine}) stands on {spread.replicas} servers"
    advice = (
        "put the table, as a Replicated…MergeTree, into a database with ENGINE = Replicated, whose statements reach "
        "every server"
    )
    if topic.template is not Template.STEP and not spread.shares_rows:
        return (
            f"{what}, each with rows of its own: a rebuilt table would be on one of them only",
            advice,
        )
    if topic.template is Template.RELOAD and not spread.shares_statements:
        return (
            f"{what}: the EXCHANGE of a reload would reach one of them, and the others would keep the old rows",
            f"{advice}; or use the template range, whose REPLACE PARTITION reaches every replica",
        )
    if topic.template is Template.STEP and topic.late is LatePolicy.REPAIR:
        return (
            f"{what}: a repair writes down on one of them which rows came late, and would not find them on another",
            "use `late: count` or `late: stop`, or the template range",
        )
    return None


def require_reach(client: Client, topic: Topic) -> None:
    """Refuse, before anything is built, what would reach one server of several."""
    if topic.template is Template.STEP and topic.late is not LatePolicy.REPAIR:
        return
    spread = read_replication(client, (topic.dst,)).get(topic.dst)
    one_sided = explain_one_sided(topic, spread) if spread else None
    if one_sided is not None:
        what, advice = one_sided
        raise ConfigurationError(f"Topic {topic.topic}: {what}. Nothing was changed; {advice}.")
