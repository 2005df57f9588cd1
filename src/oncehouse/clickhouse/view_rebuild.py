"""The statements that fill a materialized view's target again from the table that the view reads.

A second table takes what the view's query makes of all rows, and then the target's place. That is the same
as what inserts would have made only where rows are seen one by one or merged later, and where nothing else writes to
the target: what does not look like that is refused with its reason. Nothing is run here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import TableName, quote
from oncehouse.clickhouse.preflight.views import target_of
from oncehouse.clickhouse.table_info import TableFacts, describe_named

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`")
_OTHER_DATA = re.compile(r"\b(JOIN|dictGet\w*|joinGet\w*)\b", re.IGNORECASE)
_SEES_BLOCKS = re.compile(r"\b(DISTINCT|LIMIT|OVER|WITH TOTALS|ROLLUP|CUBE)\b", re.IGNORECASE)
_SUFFIX = "_rebuilt"


@dataclass(frozen=True, kw_only=True)
class ViewRebuild:
    view: str
    target: str
    statements: tuple[str, ...]
    refused: str | None
    """Why the target cannot be filled again exactly; then there are no statements."""


@dataclass(frozen=True, kw_only=True)
class ViewDefinition:
    view: str
    query: str
    columns: tuple[str, ...]
    target: TableFacts | None
    """None for a view that keeps its rows itself, or whose target the user may not see."""
    is_exchangeable: bool
    """Whether tables of the target's database can take each other's place."""
    other_writers: tuple[str, ...]
    """Further views that write to the target."""


def plan_rebuilds(client: Client, table: TableFacts) -> tuple[ViewRebuild, ...]:
    """For each view that an insert into the table reaches directly."""
    return tuple(
        plan_rebuild(table, found) for view in table.views if (found := _read_view(client, view)) is not None
    )


def plan_rebuild(table: TableFacts, view: ViewDefinition) -> ViewRebuild:
    refused = _refuse(table, view)
    if refused is not None or view.target is None:
        target = "" if view.target is None else f"{view.target.database}.{view.target.table}"
        return ViewRebuild(view=view.view, target=target, statements=(), refused=refused)
    place = view.target.name
    rebuilt = TableName(database=place.database, table=place.table + _SUFFIX)
    columns = ", ".join(quote(name) for name in view.columns)
    return ViewRebuild(
        view=view.view,
        target=f"{place.database}.{place.table}",
        statements=(
            f"CREATE TABLE {rebuilt.quoted} AS {place.quoted}",
            f"INSERT INTO {rebuilt.quoted} ({columns}) SELECT {columns} FROM ({view.query})",  # noqa: S608 - quoted
            f"EXCHANGE TABLES {rebuilt.quoted} AND {place.quoted}",
            f"DROP TABLE {rebuilt.quoted}",
        ),
        refused=None,
    )


def _refuse(table: TableFacts, view: ViewDefinition) -> str | None:
    target = view.target
    if target is None:
        return "it keeps its rows in a table of its own, or the user may not see its target"
    reasons = (*_of_tables(table, target, view), *_of_query(view.query, target))
    return next((reason for applies, reason in reasons if applies), None)


def _of_tables(table: TableFacts, target: TableFacts, view: ViewDefinition) -> tuple[tuple[bool, str], ...]:
    return (
        (
            table.loses_rows,
            f"{table.table} drops rows by itself (its engine or a TTL), so it no longer has all that the view saw",
        ),
        (
            table.is_replicated or target.is_replicated,
            "it is replicated: another server may insert meanwhile",
        ),
        (
            not target.is_merge_tree or not view.is_exchangeable,
            f"its target ({target.engine}) cannot be exchanged for another table",
        ),
        (bool(target.views), f"further views read its target: {', '.join(target.views)}"),
        (
            bool(view.other_writers),
            f"other views write to its target as well: {', '.join(view.other_writers)}",
        ),
    )


def _of_query(query: str, target: TableFacts) -> tuple[tuple[bool, str], ...]:
    bare = _TEXT.sub("''", query)
    reads_more = _OTHER_DATA.search(bare) or len(re.findall(r"\bSELECT\b", bare, re.IGNORECASE)) > 1
    groups = re.search(r"\bGROUP BY\b", bare, re.IGNORECASE)
    return (
        (
            bool(reads_more),
            "its query reads more than the inserted rows, which may have been other data then",
        ),
        (
            bool(_SEES_BLOCKS.search(bare)),
            "what its query makes depends on which rows were inserted together",
        ),
        (
            bool(groups) and not target.merges_rows,
            "it has a row for each group of each insert, and its target does not merge them",
        ),
    )


def _read_view(client: Client, name: str) -> ViewDefinition | None:
    database, _, view = name.partition(".")
    rows = client.query(
        "SELECT create_table_query, as_select FROM system.tables "
        "WHERE database = {database:String} AND name = {view:String} AND engine = 'MaterializedView'",
        {"database": database, "view": view},
    )
    if not rows:
        return None
    place = target_of(rows[0][0])
    columns = client.query(
        "SELECT name FROM system.columns WHERE database = {database:String} AND table = {view:String} "
        "ORDER BY position",
        {"database": database, "view": view},
    )
    target = None
    if place is not None:
        target = describe_named(client, TableName(database=place[0] or database, table=place[1]))
    return ViewDefinition(
        view=name,
        query=rows[0][1],
        columns=tuple(found for (found,) in columns),
        target=target,
        is_exchangeable=target is not None and _is_exchangeable(client, target.database),
        other_writers=() if target is None else _other_writers(client, name, target),
    )


def _is_exchangeable(client: Client, database: str) -> bool:
    rows = client.query(
        "SELECT engine FROM system.databases WHERE name = {database:String}", {"database": database}
    )
    return rows == [("Atomic",)]


def _other_writers(client: Client, view: str, target: TableFacts) -> tuple[str, ...]:
    rows = client.query(
        "SELECT database, name, create_table_query FROM system.tables WHERE engine = 'MaterializedView'"
    )
    found = []
    for database, name, statement in rows:
        place = target_of(statement)
        if place is not None and (place[0] or database, place[1]) == (target.database, target.table):
            found.append(f"{database}.{name}")
    return tuple(name for name in sorted(found) if name != view)
