"""A round's rows of a Django model as columns (`copy_columns.py`), where the model and its steps are the plain ones.

Plain is: PostgreSQL, a key of one whole number or UUID, columns that are fields of the model with types that PostgreSQL
spells in one way. Whatever else there is, the rows are read one by one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from django.conf import settings
from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import F, Lookup
from django.db.utils import DatabaseError

from oncehouse.sync.django.key_fields import final_field
from oncehouse.sync.model.copy_columns import (
    BOOL,
    DATE,
    FLOAT,
    INSTANT,
    TEXT,
    UUID_TEXT,
    WHOLE,
    CopiedRows,
    aggregate_as_csv,
    is_compatible,
    read_csv,
)
from oncehouse.sync.model.declaration import Declaration
from oncehouse.sync.model.read_columns import ReadColumn

_KINDS = {
    **dict.fromkeys(
        (
            *("AutoField", "BigAutoField", "SmallAutoField"),
            *("IntegerField", "BigIntegerField", "SmallIntegerField"),
            *("PositiveIntegerField", "PositiveBigIntegerField", "PositiveSmallIntegerField"),
        ),
        WHOLE,
    ),
    **dict.fromkeys(("CharField", "TextField", "SlugField"), TEXT),
    "BooleanField": BOOL,
    "FloatField": FLOAT,
    "DateField": DATE,
    "UUIDField": UUID_TEXT,
}


class KeyInArray(Lookup):
    """The key is one of these whole numbers or UUIDs: a condition with one parameter, whatever their number."""

    lookup_name = "oncehouse_among"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        type_ = self.lhs.output_field.rel_db_type(connection)
        # As a text: drivers take their time over lists.
        return f"{column} = ANY(%s::{type_}[])", [*params, f"{{{','.join(map(str, self.rhs))}}}"]


def filter_keys(queryset: Any, keys: Sequence[Any]) -> Any:
    field = queryset.model._meta.pk  # noqa: SLF001 - Django's public interface of a model
    if connections[queryset.db].vendor == "postgresql" and _kind_of(field) in {WHOLE, UUID_TEXT}:
        return queryset.filter(KeyInArray(F("pk"), keys))
    return queryset.filter(pk__in=keys)


def read_keys(model: Any, keys: Sequence[str]) -> list[int] | None:
    """Keys that are whole numbers, all at once."""
    if _kind_of(model._meta.pk) != WHOLE:  # noqa: SLF001 - as above
        return None
    # One list, not one a key: keys are spelled "[5]". What is no whole number by itself is none in here either.
    values = json.loads(f"[{','.join(keys)[1:-1].replace('],[', ',')}]")
    return values if len(values) == len(keys) and set(map(type, values)) <= {int} else None


def find_kinds(model: Any, declared: Declaration, columns: Sequence[ReadColumn]) -> list[pa.DataType] | None:
    """As what each column is read; None where not all of them can be."""
    if len(declared.key) != 1:
        return None
    fields = {field.attname: field for field in model._meta.concrete_fields}  # noqa: SLF001 - as above
    kinds = []
    for column, type_ in zip(columns, declared.columns.values(), strict=True):
        is_plain = column.many is None and column.convert is None and column.default is None
        field = fields.get(column.source) if is_plain and isinstance(column.source, str) else None
        kind = None if field is None else _kind_of(field)
        if kind is None or not is_compatible(kind, type_):
            return None
        kinds.append(kind)
    return kinds if kinds[declared.key_places[0]] in {WHOLE, UUID_TEXT} else None


def read_block(
    queryset: Any, declared: Declaration, columns: Sequence[ReadColumn], kinds: Sequence[pa.DataType]
) -> CopiedRows | None:
    rows = queryset.order_by().values_list(*(column.source for column in columns))
    try:
        sql, params = rows.query.get_compiler(rows.db).as_sql()
        with connections[rows.db].cursor() as cursor:
            cursor.execute(aggregate_as_csv(sql, kinds), params)
            (text,) = cursor.fetchone()
    except EmptyResultSet:
        text = None
    except DatabaseError:
        # Such as a text beyond PostgreSQL's gigabyte. Read one by one, it is seen whether the database is at fault.
        return None
    return read_csv(text, declared.columns, kinds, declared.key_places[0])


def _kind_of(field: Any) -> pa.DataType | None:
    field = final_field(field)
    if hasattr(field, "from_db_value"):
        return None
    match field.get_internal_type():
        case "DecimalField":
            return pa.decimal128(field.max_digits, field.decimal_places) if field.max_digits <= 38 else None
        case "DateTimeField":
            return INSTANT if settings.USE_TZ else None
        case name:
            return _KINDS.get(name)
