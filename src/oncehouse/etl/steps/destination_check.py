"""Whether a Fact table remembers what was inserted: before a step.

A step relies on the table's memory of tokens. A table that remembers nothing is refused with the statement that
helps. What a table holds that may have forgotten is in `range_presence.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.topic import Template, Topic

LEAST_BLOCKS = 100


@dataclass(frozen=True, kw_only=True)
class DestinationTable:
    """A Fact table, and how far it and the tables behind its materialized views remember."""

    facts: TableFacts
    narrowest: TableFacts
    """Of all of them, the one that remembers the fewest blocks."""
    window_seconds: float | None
    """After so long the first of them forgets; None: by number only."""


def check_destination(client: Client, topic: Topic) -> DestinationTable:
    """What the Fact table is; refused when it is missing or would double rows after a crash."""
    facts = describe_table(client, topic.dst)
    if facts is None:
        raise ConfigurationError(
            f"Topic {topic.topic}: its table {topic.dst} does not exist on {client.address}. Create it, or correct "
            "`dst` in the lineage."
        )
    tables: tuple[TableFacts, ...] = (facts,)
    if topic.template == Template.STEP:
        tables = (facts, *_read_view_targets(client, facts))
        for table in tables:
            _check_memory(topic, table)
    seconds = [table.window_seconds for table in tables if table.window_seconds is not None]
    return DestinationTable(
        facts=facts,
        narrowest=min(tables, key=lambda table: table.window_blocks),
        window_seconds=min(seconds, default=None),
    )


def explain_overflow(topic: Topic, narrowest: TableFacts) -> str:
    """A step made more blocks, one a partition, than a table remembers."""
    blocks = narrowest.window_blocks
    return (
        f"Topic {topic.topic}: this step has rows for more than {blocks} partitions, and {narrowest.database}."
        f"{narrowest.table} remembers {blocks} blocks, so that a repeat after a crash would be doubled. Nothing went "
        f"in. {_widen(narrowest, blocks * 10)}, or let it have fewer partitions."
    )


def refuse_existing_rows(client: Client, topic: Topic) -> None:
    """The first step of a topic goes into an empty table: rows that are there came by other offsets, and their
    ranges would be built a second time."""
    sql = f"SELECT count() FROM {quote_table(topic.dst)}"  # noqa: S608 - quoted
    rows = int(read_in_step(client, [topic.dst], lambda reader: reader.query(sql))[0][0])
    if rows:
        raise ConfigurationError(
            f"Topic {topic.topic} has no position yet, but {topic.dst} holds {rows} rows (a topic with another name, "
            "other offsets or another program has put them there), and may get them a second time. `oncehouse etl seek "
            f"{topic.topic} POSITION` lets it go on after the last of them; `seek {topic.topic} start --force` builds "
            "all of it beside them."
        )


def _check_memory(topic: Topic, facts: TableFacts) -> None:
    if facts.window_blocks >= LEAST_BLOCKS:
        return
    name = f"{facts.database}.{facts.table}"
    raise ConfigurationError(
        f"Topic {topic.topic}: {name} ({facts.engine}) remembers {facts.window_blocks} inserted blocks, so a step "
        f"that runs again after a crash would double its rows. {_widen(facts, LEAST_BLOCKS * 10)}"
    )


def _widen(facts: TableFacts, blocks: int) -> str:
    table = f"{quote(facts.database)}.{quote(facts.table)}"
    return f"ALTER TABLE {table} MODIFY SETTING {facts.window_setting} = {blocks}"


def _read_view_targets(client: Client, facts: TableFacts) -> tuple[TableFacts, ...]:
    """Tables that materialized views fill from this one; each needs a memory of its own.

    Targets that keep no memory at all (a Buffer before a log, say) take what comes, twice after a crash.
    """
    if not facts.views:
        return ()
    rows = client.query(
        "SELECT target_database || '.' || target_table FROM system.tables WHERE engine = 'MaterializedView' "
        "AND database || '.' || name IN {views:Array(String)} AND target_table != ''",
        {"views": list(facts.views)},
    )
    found = (describe_table(client, name) for (name,) in rows if name.count(".") == 1)
    return tuple(target for target in found if target is not None and target.is_merge_tree)
