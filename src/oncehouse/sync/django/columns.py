"""The columns of a sync of a Django model: derived from its fields, overridden by the class, and how each is read.

A column is read by a name that `values_list` takes (a field, `customer__country`, an annotation), by an expression, or,
for many-to-many fields, by a query of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import JSONField

from oncehouse.errors import ConfigurationError
from oncehouse.sync.django.column_types import choose_type
from oncehouse.sync.model.read_columns import ReadColumn

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Column:
    """A column of the user's own: its ClickHouse type, and where its values come from."""

    type: str
    source: Any = None
    """A name for `values_list`, or an expression of Django's; the column's own name where it is not given."""
    default: Any = None
    """In place of a null."""


def read_columns(model: Any, overrides: Mapping[str, Any]) -> tuple[ReadColumn, ...]:
    """Derived columns in the order of the fields, changed by the overrides; new ones behind them."""
    fields = {field.attname: field for field in model._meta.concrete_fields}  # noqa: SLF001 - Django's public interface
    many = {field.name: field for field in model._meta.many_to_many}  # noqa: SLF001
    names = {field.name: field.attname for field in fields.values()}
    chosen = {names.get(name, name): value for name, value in overrides.items()}
    columns: list[ReadColumn] = []
    for name, field in fields.items():
        if name not in chosen:
            columns.append(_derive(name, field, choose_type(field)))
        elif chosen[name] is not None:
            columns.append(_override(name, chosen[name], model))
    for name, field in many.items():
        if name not in chosen:
            columns.append(_derive_many(name, field, _many_type(field)))
        elif chosen[name] is not None:
            columns.append(_override(name, chosen[name], model))
    columns += [
        _override(name, value, model)
        for name, value in chosen.items()
        if name not in fields and name not in many and value is not None
    ]
    return tuple(columns)


def _override(name: str, value: Any, model: Any) -> ReadColumn:
    column = Column(value) if isinstance(value, str) else value
    if not isinstance(column, Column):
        raise ConfigurationError(
            f"columns[{name!r}] of the sync of {model.__name__} is {value!r}; write a ClickHouse type, a Column or None"
        )
    source = name if column.source is None else column.source
    field = _find_field(model, source) if isinstance(source, str) else None
    if field is not None and field.many_to_many:
        return _derive_many(name, field, column.type)
    derived = _derive(name, field, column.type)
    return replace(derived, source=source, default=column.default)


def _find_field(model: Any, name: str) -> Any:
    try:
        return model._meta.get_field(name)  # noqa: SLF001 - Django's public interface of a model
    except FieldDoesNotExist:
        # An annotation of the queryset, or a path over relations; Django raises if it is neither.
        return None


def _derive(name: str, field: Any, type_: str) -> ReadColumn:
    convert: Callable[[Any], Any] | None = None
    if isinstance(field, JSONField):
        encoder = field.encoder

        def convert(value: Any) -> str:
            return json.dumps(value, ensure_ascii=False, cls=encoder)
    elif field is not None and field.get_internal_type() == "DurationField":

        def convert(value: Any) -> int:
            return int(value // _MICROSECOND)

    return ReadColumn(name=name, type=type_, source=name, convert=convert)


def _derive_many(name: str, field: Any, type_: str) -> ReadColumn:
    through = field.remote_field.through._meta  # noqa: SLF001 - Django's public interface of a model
    for link in (field.m2m_field_name(), field.m2m_reverse_field_name()):
        if not through.get_field(link).target_field.primary_key:
            raise ConfigurationError(
                f"{field.model.__name__}.{field.name} cannot be a column: {through.label}.{link} does not hold a "
                f"primary key. Leave it out: columns = {{{name!r}: None}}."
            )
    return ReadColumn(name=name, type=type_, source=name, many=field)


def _many_type(field: Any) -> str:
    return f"Array({choose_type(field.remote_field.model._meta.pk)})"  # noqa: SLF001 - Django's public interface
