"""The fields of a model's primary key, and the one form that their values have.

A key that a program gives may be spelled in several ways (`1` and `Decimal("1.00")`, a time in another zone). In
another form than that in which the database returns it, it would be taken for the key of a row that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connections

from oncehouse.errors import PermanentError


def key_fields(model: Any) -> tuple[Any, ...]:
    """Django before 5.2 knows keys of one field only."""
    meta = model._meta  # noqa: SLF001 - Django's public interface of a model
    return tuple(getattr(meta, "pk_fields", None) or (meta.pk,))


def final_field(field: Any) -> Any:
    """Of a foreign key the field that it holds the value of."""
    while field.is_relation:
        field = field.target_field
    return field


def form_key(model: Any, values: Sequence[Any], alias: str) -> tuple[Any, ...]:
    """The values as this database returns them."""
    fields = key_fields(model)
    try:
        return tuple(
            _form(final_field(field), value, alias) for field, value in zip(fields, values, strict=True)
        )
    except (ValidationError, ValueError, TypeError, ArithmeticError) as error:
        given = json.dumps(list(values), default=str, ensure_ascii=False)
        names = ", ".join(field.attname for field in fields)
        raise PermanentError(f"{given} is no key of {model.__name__}, whose key is ({names})") from error


def _form(field: Any, given: Any, alias: str) -> Any:
    match field.to_python(given):
        case Decimal() as value:
            return round(value, field.decimal_places)
        case datetime(tzinfo=zone) as value if zone is not None:
            return value.astimezone(connections[alias].timezone)
        case value:
            return value
