"""Key values in one form, so that a key given by the program, one that the database returned and one of the storage
compare as equal: `5` and `"5"`, a UUID and its text, a time in one zone or another.

Types whose values have several spellings that the database takes for equal cannot be keys.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import types

from oncehouse.errors import ConfigurationError, PermanentError

Form = Callable[[Any], Any]


def choose_form(name: str, type_: Any) -> Form:  # noqa: PLR0911 - one case a type
    """What brings a value of a key column, or its text in an operation, into its one form."""
    match type_:
        case types.Integer():
            return int
        case types.Uuid(as_uuid=as_uuid):
            return _form_uuid if as_uuid else lambda value: str(_form_uuid(value))
        case types.Enum():
            pass
        case types.String(collation=None):
            # PostgreSQL fills CHAR with blanks and does not compare them.
            return _form_padded if isinstance(type_, types.CHAR | types.NCHAR) else str
        case types.DateTime(timezone=timezone):
            return _form_instant if timezone else _form_local
        case types.Date():
            return _form_date
        case types.Numeric(asdecimal=True, scale=int(scale)) if not isinstance(type_, types.Float):
            return lambda value: round(Decimal(str(value)), scale)
        case types.LargeBinary():
            return lambda value: bytes.fromhex(value) if isinstance(value, str) else bytes(value)
    raise ConfigurationError(
        f"{name} is a {type_!r} and part of the key: its values could be spelled in several ways. Keys of synced "
        "classes are whole numbers, texts without a collation, UUIDs, dates, times, or decimals with a scale."
    )


def _form_uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def _form_padded(value: Any) -> str:
    return str(value).rstrip(" ")


def _form_date(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    return value.date() if isinstance(value, datetime) else value


def _form_local(value: Any) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    if found.tzinfo is not None:
        raise PermanentError(
            f"the key value {found!r} has a time zone and its column has none; give it without"
        )
    return found


def _form_instant(value: Any) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    if found.tzinfo is None:
        # SQLite keeps no zone: what is read there is what was written.
        return found.replace(tzinfo=UTC)
    return found.astimezone(UTC)
