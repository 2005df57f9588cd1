"""Can ClickHouse serve the lineage? Tables and lineage in, findings with exact advice out.

`evaluate_topic` is pure; `inspect_lineage` reads the tables (`table_info.py`), and lets the server describe each file,
template and block with expectations. Nothing is changed: a finding gives the statement to run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.clickhouse.create_table import widen_window_ddl
from oncehouse.clickhouse.identifiers import quote, quote_table, split_table
from oncehouse.clickhouse.insert.block_counts import read_block_count
from oncehouse.clickhouse.preflight.check import Finding, Level
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.config.problems import nearest
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.lineage.topic import LatePolicy, Template, Topic
from oncehouse.etl.preflight.table_info import TableState, read_tables, window_setting
from oncehouse.etl.quality.expectations import check_columns
from oncehouse.etl.steps.destination_check import LEAST_BLOCKS, check_view_targets, read_destination
from oncehouse.etl.steps.late_row_repair import KEEPING_ENGINES
from oncehouse.etl.steps.transforms import find_transform, read_columns

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

WINDOW_BLOCKS = 1000
"""Blocks that a Fact table should remember: repeats come soon, but one insert makes a block a partition."""
_ID_TYPE = re.compile(r"U?Int(8|16|32|64)")
_TIME_TYPE = re.compile(r"Date(32|Time|Time64)?(\(.*\))?")
# pos itself, or a function of time that keeps its order, such as toDate(pos).
_POS_FIRST = re.compile(r"^(to[A-Z]\w*\()?pos\b")


def inspect_lineage(client: Client, lineage: Sequence[Topic], database: str) -> tuple[Finding, ...]:
    """Read what the lineage names, and judge it. `database` is the scheduler's own."""
    wanted = {table for topic in lineage for table in (topic.dst, *topic.depends_on)}
    wanted |= {view for topic in lineage if (view := transform_view(topic, database)) is not None}
    tables = read_tables(client, wanted)
    return tuple(
        finding
        for topic in lineage
        for finding in (
            *evaluate_topic(topic, tables, database),
            *_inspect_memory(client, topic, tables.get(topic.dst)),
            *_try_transform(client, topic, tables, database),
        )
    )


def _inspect_memory(client: Client, topic: Topic, state: TableState | None) -> Iterator[Finding]:
    """Of a step: the tables behind its Fact's materialized views."""
    if topic.is_source or topic.template != Template.STEP or state is None or not state.is_merge_tree:
        return
    if (facts := describe_table(client, topic.dst)) is None:
        return
    destination = read_destination(client, facts)
    yield from check_view_targets(topic, destination.views)
    if read_block_count(client, topic.dst, facts) is None:
        yield from evaluate_uncounted(topic, facts, client.config.user)


def evaluate_uncounted(topic: Topic, facts: TableFacts, user: str) -> Iterator[Finding]:
    """Of a Fact table whose blocks cannot be counted: after a crash its rows are counted instead. Pure."""
    may_find_rows = facts.column("pos") is not None and facts.column("id") is not None
    if facts.engine.startswith("Shared"):
        if not may_find_rows:
            yield Finding(
                level=Level.WARNING,
                where=topic.topic,
                what=f"{topic.dst} ({facts.engine}) does not show how many blocks it has taken, and has no columns pos "
                "and id: a step whose answer was lost stops the topic",
                advice=f"add the pos and id of {topic.depends_on[0]} to the table and its transform",
            )
        return
    shown = "system.replicas" if facts.is_replicated else "system.parts"
    then = "its rows are counted" if may_find_rows else "the topic stops, as it has no columns pos and id"
    yield Finding(
        level=Level.WARNING,
        where=topic.topic,
        what=f"how many blocks others insert into {topic.dst} cannot be seen: after a lost answer {then}",
        advice=f"GRANT SELECT ON {shown} TO {quote(user)}",
    )


def _try_transform(
    client: Client, topic: Topic, tables: Mapping[str, TableState], database: str
) -> Iterable[Finding]:
    """Files, templates and what expectations look at: ClickHouse itself says whether it understands them."""
    view = transform_view(topic, database)
    is_written = topic.template_file is not None or (topic.transform or "").endswith(".sql")
    if topic.is_source or not (is_written or topic.expect) or (view is not None and view not in tables):
        return
    named = topic if is_written or view is None else replace(topic, transform=view)
    try:
        transform = find_transform(client, named, Path(), offsets_table=None)
        columns = read_columns(client, transform)
        check_columns(topic.expect, tuple(columns), where=transform.name)
    except (ConfigurationError, PermanentError) as error:
        yield _error(topic, str(error).splitlines()[0], "correct it; `oncehouse etl plan` shows its SQL")
        return
    if is_written:
        yield from _evaluate_columns(topic, transform.name, columns, tables.get(topic.dst))


def transform_view(topic: Topic, database: str) -> str | None:
    """The view that yields the topic's rows; None for a source, a file of SQL, and a template that says all."""
    if topic.is_source or (topic.transform is None and topic.template_file is not None):
        return None
    if topic.transform is None:
        return f"{database}.{topic.topic}Transform"
    return None if topic.transform.endswith(".sql") else topic.transform


def evaluate_topic(topic: Topic, tables: Mapping[str, TableState], database: str) -> Iterable[Finding]:
    """Everything that stands in a topic's way; a source is judged by the topics that read it."""
    if topic.is_source:
        if topic.dst not in tables:
            yield _error(topic, f"the source {topic.dst} does not exist", "create it, or correct its dst")
        return
    yield from _evaluate_destination(topic, tables.get(topic.dst))
    yield from _evaluate_transform(topic, tables, database)
    for at, table in enumerate(topic.depends_on):
        if (state := tables.get(table)) is not None:
            yield from _evaluate_source(topic, table, state, is_main=at == 0)


def _evaluate_destination(topic: Topic, state: TableState | None) -> Iterable[Finding]:
    if state is None:
        yield _error(topic, f"the table {topic.dst} does not exist", "create it, or correct dst")
        return
    if not state.is_merge_tree:
        if topic.template != Template.RELOAD:
            yield _error(
                topic,
                f"{topic.dst} has the engine {state.engine}, which does not remember what was inserted",
                "use an engine of the MergeTree family",
            )
    elif topic.template == Template.STEP and state.window_blocks < WINDOW_BLOCKS:
        setting = window_setting(state.engine)
        yield Finding(
            # What the steps themselves refuse is an error here; a narrow memory is a warning.
            level=Level.ERROR if state.window_blocks < LEAST_BLOCKS else Level.WARNING,
            where=topic.topic,
            what=f"{topic.dst} remembers {state.window_blocks} blocks; it may not recognize a repeated step",
            advice=f"{widen_window_ddl(split_table(topic.dst), setting, WINDOW_BLOCKS)};",
        )
    if topic.template == Template.STEP and topic.late is LatePolicy.REPAIR:
        yield from _evaluate_repair(topic, state)
    if topic.template == Template.RANGE and topic.range_column is not None:
        yield from _evaluate_range(topic, state, topic.range_column)


def _evaluate_repair(topic: Topic, state: TableState) -> Iterable[Finding]:
    if state.engine not in KEEPING_ENGINES:
        yield _error(
            topic,
            f"{topic.dst} has the engine {state.engine}: which rows of a source it holds is unknown",
            "use `late: count`, or an engine that keeps every row",
        )
    for column in ("pos", "id"):
        if column not in state.columns:
            yield _error(
                topic,
                f"{topic.dst} has no column {column}, by which a repair finds what came late",
                f"add the {column} of {topic.depends_on[0]} to the table and its transform, or use `late: count`",
            )


def _evaluate_range(topic: Topic, state: TableState, column: str) -> Iterable[Finding]:
    type_ = state.columns.get(column)
    if type_ is None or not _TIME_TYPE.fullmatch(type_):
        what = (
            f"{topic.dst} has no column {column}"
            if type_ is None
            else f"{topic.dst}.{column} is {type_}, no time"
        )
        yield _error(
            topic, what, _did_you_mean(column, state.columns) or "range_column must name a Date or DateTime"
        )
    elif re.search(rf"\b{re.escape(column)}\b", state.partition_key) is None:
        key = f"is partitioned by {state.partition_key}" if state.partition_key else "has no partitions"
        yield _error(
            topic,
            f"{topic.dst} {key}; a range replaces whole partitions",
            f"create it with PARTITION BY toDate({column}), or another function of {column} alone",
        )


def _evaluate_transform(topic: Topic, tables: Mapping[str, TableState], database: str) -> Iterable[Finding]:
    view = transform_view(topic, database)
    if view is None:
        return
    if view not in tables:
        main = topic.depends_on[0] if topic.depends_on else "…"
        where = "" if topic.template == Template.RELOAD else " WHERE …"
        yield _error(
            topic,
            f"the transform view {view} does not exist",
            f"CREATE VIEW {quote_table(view)} AS SELECT … FROM {main}{where};",  # noqa: S608 - advice, not run
        )
        return
    if topic.template_file is None:  # else its columns are those that the template makes of them
        yield from _evaluate_columns(topic, view, tables[view].columns, tables.get(topic.dst))


def _evaluate_columns(
    topic: Topic, name: str, columns: Iterable[str], destination: TableState | None
) -> Iterable[Finding]:
    for column in columns if destination is not None else ():
        if destination is not None and column not in destination.columns:
            yield _error(
                topic,
                f"{name} yields the column {column}, which {topic.dst} does not have",
                _did_you_mean(column, destination.columns)
                or f"add the column to the table, or take it out of {name}",
            )


def _evaluate_source(topic: Topic, table: str, state: TableState, *, is_main: bool) -> Iterable[Finding]:
    pos, id_ = state.columns.get("pos"), state.columns.get("id")
    name = quote_table(table)
    if pos is None:
        yield _error(
            topic,
            f"the source {table} has no column pos",
            f"ALTER TABLE {name} ADD COLUMN pos DateTime64(3) DEFAULT now64(3); "
            "or give it the time that the data has",
        )
    elif not pos.startswith("DateTime64"):
        yield _error(topic, f"{table}.pos is {pos}", f"ALTER TABLE {name} MODIFY COLUMN pos DateTime64(3);")
    elif is_main and pos[:12] > "DateTime64(3":
        yield Finding(
            level=Level.WARNING,
            where=topic.topic,
            what=f"{table}.pos is {pos}, positions have milliseconds: the latest rows wait for those after them",
            advice="compare toDateTime64(pos, 3) in the transform, or make the column DateTime64(3)",
        )
    if id_ is None:
        yield _error(
            topic,
            f"the source {table} has no column id",
            f"ALTER TABLE {name} ADD COLUMN id UInt64 DEFAULT generateSnowflakeID();",
        )
    elif not _ID_TYPE.fullmatch(id_):
        yield _error(
            topic,
            f"{table}.id is {id_}, no whole number",
            "give the table a column id UInt64 that only grows",
        )
    if is_main and pos is not None and topic.template == Template.STEP and not serves_range(state):
        yield _error(
            topic,
            f"{table} is sorted by {state.sorting_key or 'nothing'}; every step would read all of it to find its rows",
            f"create it with ORDER BY (pos, id), or ALTER TABLE {name} ADD INDEX by_pos pos TYPE minmax "
            f"GRANULARITY 1, and then ALTER TABLE {name} MATERIALIZE INDEX by_pos;",
        )


def serves_range(state: TableState) -> bool:
    """Whether rows between two positions are found without reading the table: pos leads, or has an index."""
    return state.pos_is_indexed or _POS_FIRST.match(state.sorting_key) is not None


def _error(topic: Topic, what: str, advice: str) -> Finding:
    return Finding(level=Level.ERROR, where=topic.topic, what=what, advice=advice)


def _did_you_mean(word: str, words: Iterable[str]) -> str:
    lowered = {name.lower(): name for name in words}
    meant = nearest(word, lowered)
    return f'did you mean "{lowered[meant]}"?' if meant is not None else ""
