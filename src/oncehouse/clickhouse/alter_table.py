"""What a table lacks of what a pipeline sends, as statements: pure, from facts and needs.

A change is additive when no stored value can change by it. Others are planned too, and run only when the user
insists. Columns that the pipeline does not fill are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from oncehouse.clickhouse.create_table import add_column_ddl, modify_column_ddl
from oncehouse.clickhouse.preflight.requirements import Needs
from oncehouse.clickhouse.table_info import TableFacts
from oncehouse.clickhouse.type_compatibility import compare_types, widens
from oncehouse.column_types.parser import parse_type
from oncehouse.errors import ConfigurationError


class ChangeKind(StrEnum):
    ADD = "add"
    WIDEN = "widen"
    NARROW = "narrow"
    """Stored values could change or be refused."""
    NOTE = "note"
    """Nothing to run, something to know."""


@dataclass(frozen=True, kw_only=True)
class ColumnChange:
    table: str
    column: str
    kind: ChangeKind
    why: str
    statement: str | None = None


def plan_columns(facts: TableFacts, needs: Needs) -> Iterator[ColumnChange]:
    """Statements that let the table take what is sent, in the order of the fields."""
    for name, type_ in needs.columns.items():
        column = facts.column(name)
        if column is None:
            yield ColumnChange(
                table=needs.table,
                column=name,
                kind=ChangeKind.ADD,
                why=f"the table has no column for {type_}",
                statement=add_column_ddl(needs.table, name, type_),
            )
        elif compare_types(type_, column.type) is not None:
            yield _change_type(needs.table, name, column.type, type_)
    own = {*needs.columns, needs.batch_column, needs.id_column}
    for column in facts.columns:
        if column.name not in own and not column.default_kind:
            yield ColumnChange(
                table=needs.table,
                column=column.name,
                kind=ChangeKind.NOTE,
                why="no field fills this column; new rows get its default",
            )


def _change_type(table: str, name: str, old: str, new: str) -> ColumnChange:
    return ColumnChange(
        table=table,
        column=name,
        kind=ChangeKind.WIDEN if _is_wider(old, new) else ChangeKind.NARROW,
        why=f"the table has {old}, the pipeline sends {new}",
        statement=modify_column_ddl(table, name, new),
    )


def _is_wider(old: str, new: str) -> bool:
    try:
        return widens(parse_type(old), parse_type(new))
    except ConfigurationError:
        return False  # a type that we cannot read is not compared
