"""What the database's log has of a Django model: the fields of its own table, as the database has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import JSONField

from oncehouse.sync.cdc.wal_tables import leave_out
from oncehouse.sync.model.declaration import WalTable

if TYPE_CHECKING:
    from oncehouse.sync.django.model_sync import ModelSync
    from oncehouse.sync.model.read_columns import ReadColumn


def describe_wal_table(sync: type[ModelSync]) -> WalTable:
    meta = sync.django_model._meta.concrete_model._meta  # noqa: SLF001 - Django's public interface of a model
    columns: dict[str, str] = {}
    refused: list[str] = []
    if sync.django_model_serializer is not None:
        refused.append(
            "django_model_serializer: the log knows nothing of Python. Let columns of the table do, or let the outbox "
            "feed this sync"
        )
    for column in sync.model_columns():
        field = _find_field(meta, column)
        problem = _explain_refusal(meta, column, field)
        if problem is None:
            columns[column.name] = field.column
        else:
            refused.append(leave_out(column.name, problem))
    return WalTable(name=meta.db_table.replace('"', ""), columns=columns, refused=tuple(refused))


def _find_field(meta: Any, column: ReadColumn) -> Any:
    named = (field for field in meta.concrete_fields if column.source in {field.name, field.attname})
    return next(named, None) if isinstance(column.source, str) else None


def _explain_refusal(meta: Any, column: ReadColumn, field: Any) -> str | None:
    if column.many is not None:
        return "the links of a many-to-many field are rows of another table"
    if field is None:
        return f"{column.source} is computed, or comes over a join, and is no column of {meta.db_table}"
    if field not in meta.local_concrete_fields:
        return f"it is a column of the parent's table, {field.model._meta.db_table}"  # noqa: SLF001
    if column.default is not None:
        return (
            "a default in place of null is for rounds; the log has the null. Declare it without, as Nullable"
        )
    if _is_converted(field):
        return f"{type(field).__name__} makes its values in Python, and the log has what the database stores"
    return None


def _is_converted(field: Any) -> bool:
    if isinstance(field, JSONField):
        return field.encoder is not None or field.decoder is not None
    return hasattr(getattr(field, "base_field", field), "from_db_value")
