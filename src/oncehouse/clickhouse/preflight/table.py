"""A table against what the pipeline sends it: columns, their types, and how much the table remembers. Pure."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING

from oncehouse.clickhouse.create_table import widen_window_ddl
from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.insert.dedup_window import WindowNeeds, blocks_needed, explain, seconds_needed
from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.clickhouse.type_compatibility import compare_types, difference_is_null

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.clickhouse.preflight.requirements import Needs
    from oncehouse.clickhouse.table_info import Column, TableFacts

PARTITIONS_AN_INSERT = 10
"""What an insert into a partitioned table is expected to touch when the pipeline file does not say otherwise."""

_SECONDS_SETTING = "replicated_deduplication_window_seconds"


def check_columns(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    found = [*_check_sent(facts, needs), *_check_own(facts, needs), *_check_pos(facts, needs)]
    yield from found
    if not found:
        own = [name for name in (needs.batch_column, needs.id_column) if name]
        yield Finding(
            level=Level.OK,
            where=needs.table,
            what=f"all {len(needs.columns)} columns that are sent have their type in the table, and "
            f"oncehouse's own are there ({', '.join(own)})",
        )


def _check_sent(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    for name, declared in needs.columns.items():
        where = f"{needs.table}.{name}"
        column = facts.column(name)
        if column is None:
            yield Finding(
                level=Level.ERROR,
                where=where,
                what="the table has no such column",
                advice=_nearest(facts, name, declared, needs),
            )
        elif column.default_kind in {"MATERIALIZED", "ALIAS"}:
            yield Finding(
                level=Level.ERROR,
                where=where,
                what=f"the column is {column.default_kind}: the table computes it and takes no value",
                advice=f"leave {name} out of tables.columns",
            )
        elif (difference := compare_types(declared, column.type)) is not None:
            yield Finding(
                level=Level.ERROR,
                where=where,
                what=f"the pipeline sends {declared}, the table has {column.type}: {difference}",
                advice=_advise_type(name, declared, column, needs),
            )


def _check_pos(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    if not needs.stamps_pos:
        return
    column = facts.column("pos")
    is_sent = "pos" in needs.columns
    if is_sent or column is None or column.default_kind not in {"DEFAULT", "MATERIALIZED"}:
        yield Finding(
            level=Level.ERROR,
            where=f"{needs.table}.pos",
            what="declare says `pos: inserted`, but "
            + ("the pipeline sends the column" if is_sent else "the table does not set the column by itself"),
            advice="say `pos: event` with a `lateness`"
            if is_sent
            else f"run: ALTER TABLE {quote_table(needs.table)} MODIFY COLUMN pos DateTime64(3) DEFAULT now64(3)",
        )


def _advise_type(name: str, declared: str, column: Column, needs: Needs) -> str:
    declare = f"declare the field as {column.type}"
    if difference_is_null(declared, column.type):
        table = quote_table(needs.table)
        return f"{declare}, or run: ALTER TABLE {table} MODIFY COLUMN {quote(name)} {declared}"
    return (
        f"{declare}, or load a table that has {declared} here (changing the column would change its values)"
    )


def _nearest(facts: TableFacts, name: str, declared: str, needs: Needs) -> str:
    close = difflib.get_close_matches(name, [column.name for column in facts.columns], n=1)
    meant = f"did you mean {close[0]!r}? Otherwise run: " if close else "run: "
    return f"{meant}ALTER TABLE {quote_table(needs.table)} ADD COLUMN {quote(name)} {declared}"


def _check_own(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    own = {needs.batch_column: "UUID"} | ({needs.id_column: "FixedString(16)"} if needs.id_column else {})
    for name, type_ in own.items():
        column = facts.column(name)
        if column is None:
            yield Finding(
                level=Level.ERROR,
                where=f"{needs.table}.{name}",
                what=f"the table lacks oncehouse's own column {name} {type_}",
                advice=f"run: ALTER TABLE {quote_table(needs.table)} ADD COLUMN {quote(name)} {type_}",
            )
        elif column.type != type_ or column.default_kind in {"MATERIALIZED", "ALIAS"}:
            yield Finding(
                level=Level.ERROR,
                where=f"{needs.table}.{name}",
                what=f"oncehouse needs a plain column of type {type_} here, the table has {_show(column)}",
                advice=f"give the column another name in the pipeline file, or make it {type_}",
            )


def check_window(facts: TableFacts, window: WindowNeeds, *, table: str) -> Iterator[Finding]:
    """Whether the table remembers tokens for as long as a retry may take; `table` names it for people."""
    spread = spread_window(facts, window)
    blocks, where = blocks_needed(spread), f"{table}: {facts.window_setting}"
    remembers = f"the last {facts.window_blocks} blocks" if facts.window_blocks else "no blocks at all"
    figures = f"the table remembers {remembers}, a retry needs {blocks} ({explain(spread)})"
    if facts.window_blocks < blocks:
        advice = f"run: {widen_window_ddl(facts.name, facts.window_setting, blocks)}"
        yield Finding(level=Level.ERROR, where=where, what=figures, advice=advice)
    else:
        yield Finding(level=Level.OK, where=where, what=figures)
    if facts.window_seconds is None:
        return
    seconds, where = seconds_needed(spread), f"{table}: {_SECONDS_SETTING}"
    figures = f"the table remembers blocks for {facts.window_seconds:g} s, a retry needs {seconds} s"
    if facts.window_seconds < seconds:
        advice = f"run: {widen_window_ddl(facts.name, _SECONDS_SETTING, seconds)}"
        yield Finding(level=Level.ERROR, where=where, what=figures, advice=advice)
    else:
        yield Finding(level=Level.OK, where=where, what=figures)


def spread_window(facts: TableFacts, window: WindowNeeds) -> WindowNeeds:
    """An insert leaves one token in each partition it touches, and late events touch more than the newest."""
    if not facts.partition_key:
        return window
    return replace(window, partitions_per_insert=max(window.partitions_per_insert, PARTITIONS_AN_INSERT))


def check_losses(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    if facts.loses_rows:
        reason = f"{facts.engine} merges rows away" if facts.merges_rows else "its TTL removes rows"
        yield Finding(
            level=Level.INFO,
            where=needs.table,
            what=f"{reason}, so counts of rows prove less",
            advice="`oncehouse verify` compares what can be compared and says what cannot",
        )


def _show(column: Column) -> str:
    return f"{column.type} {column.default_kind}".strip()
