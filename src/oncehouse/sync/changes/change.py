"""An operation: a key of a sync that changed. What changed is not in it: rows are read when they are synced.

A key has one spelling, a JSON list of its values, so that keys of the model, of rows that were read and of the storage
can be compared as texts. PostgreSQL's `json_build_array` spells integers and texts the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple, overload
from uuid import UUID

from oncehouse.errors import ConfigurationError

KeyValues = tuple[Any, ...]

_encode = json.JSONEncoder(ensure_ascii=False).encode


class OperationKind(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Operation(NamedTuple):
    id: str
    """Known to its storage alone; two operations of one key have two ids."""
    key: str
    kind: OperationKind


class ListedOperations(Sequence[Operation]):
    """Operations as columns: a round asks for their ids and keys, and hardly ever for one of them."""

    def __init__(self, ids: Sequence[str], keys: Sequence[str], kinds: Sequence[str]) -> None:
        self.ids = ids
        self.keys = keys
        self._kinds = kinds

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> Operation: ...

    @overload
    def __getitem__(self, place: slice) -> ListedOperations: ...

    def __getitem__(self, place: int | slice) -> Operation | ListedOperations:
        if isinstance(place, slice):
            return ListedOperations(self.ids[place], self.keys[place], self._kinds[place])
        return Operation(self.ids[place], self.keys[place], OperationKind(self._kinds[place]))


def format_key(values: Sequence[Any]) -> str:
    """The values of a key, in the order of the model's key, as one text."""
    if len(values) == 1 and type(values[0]) is int:  # nearly every key; each save spells one
        return f"[{values[0]}]"
    return _encode([_format_value(value) for value in values])


def read_key(key: str) -> KeyValues:
    """What `format_key` was given, as far as JSON has it: UUIDs, dates and decimals stay texts."""
    return tuple(json.loads(key))


def _format_value(value: Any) -> int | str:
    match value:
        case bool() | None | float():
            raise ConfigurationError(
                f"{value!r} cannot be the key of a synced row; keys are whole numbers, texts, UUIDs, dates or decimals"
            )
        case int() | str():
            return value
        case UUID() | Decimal():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | memoryview():
            return bytes(value).hex()
        case _:
            raise ConfigurationError(f"a {type(value).__name__} cannot be the key of a synced row")


def list_ids(operations: Sequence[Operation]) -> tuple[str, ...]:
    if isinstance(operations, ListedOperations):
        return tuple(operations.ids)
    return tuple([operation.id for operation in operations])


def distinct_keys(operations: Iterable[Operation]) -> list[str]:
    """Each key once, in the order in which it was first listed."""
    if isinstance(operations, ListedOperations):
        return list(dict.fromkeys(operations.keys))
    return list(dict.fromkeys([operation.key for operation in operations]))
