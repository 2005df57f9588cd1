"""What the database's log has of a mapped class: the columns of its one table, as the database has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Table, TypeCoerce, types

from oncehouse.sync.cdc.wal_tables import leave_out
from oncehouse.sync.model.declaration import WalTable
from oncehouse.sync.model.read_columns import ReadColumn
from oncehouse.sync.sqlalchemy.columns import find_mapper

if TYPE_CHECKING:
    from oncehouse.sync.sqlalchemy.model_sync import ModelSync


def describe_wal_table(sync: type[ModelSync]) -> WalTable:
    mapper = find_mapper(sync.model)
    table = mapper.local_table
    assert isinstance(table, Table)  # noqa: S101 - for the type checker: `find_mapper` refuses others
    columns: dict[str, str] = {}
    refused: list[str] = []
    if sync.model_serializer is not None:
        refused.append(
            "model_serializer: the log knows nothing of Python. Let columns of the table do, or let the outbox feed "
            "this sync"
        )
    if mapper.single:
        refused.append(
            f"model: {table.name} has rows of other classes too, and the log does not distinguish them. Sync the class "
            "that has the table"
        )
    for column in sync.model_columns():
        found = _find_column(table, column.source)
        problem = _explain_refusal(table, column, found)
        if problem is None and found is not None:
            columns[column.name] = str(found.name)
        else:
            refused.append(leave_out(column.name, problem or ""))
    name = f"{table.schema}.{table.name}" if table.schema else table.name
    return WalTable(name=name, columns=columns, refused=tuple(refused))


def _find_column(table: Table, source: Any) -> Column[Any] | None:
    found = source.__clause_element__() if hasattr(source, "__clause_element__") else source
    found = found.clause if isinstance(found, TypeCoerce) else found
    if not isinstance(found, Column):
        return None
    return next((column for column in table.columns if column.shares_lineage(found)), None)


def _is_converted(type_: Any) -> bool:
    base = types.TypeDecorator
    return isinstance(type_, base) and any(
        getattr(type(type_), name) is not getattr(base, name)
        for name in ("process_result_value", "result_processor", "column_expression")
    )


def _explain_refusal(table: Table, column: ReadColumn, found: Column[Any] | None) -> str | None:
    if column.many is not None:
        return "the links of a relationship are rows of another table"
    if found is None:
        return f"it is computed, or a column of another table, and none of {table.name}"
    is_json = isinstance(found.type, types.JSON)
    if column.default is not None and not is_json:
        return (
            "a default in place of null is for rounds; the log has the null. Declare it without, as Nullable"
        )
    if _is_converted(found.type):
        return f"{type(found.type).__name__} makes its values in Python, and the log has what the database stores"
    return None
