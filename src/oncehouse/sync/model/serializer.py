"""Serializers of the user's own, what the frameworks' share, and a row from what one gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncehouse.errors import PermanentError


class Serializer:
    """An object of the model in, the values of the columns out. Override `serialize`, or what it calls.

    Without a serializer rows are read without making objects, which is several times faster.
    """

    def __init__(self, sync: Any) -> None:
        self.sync = sync
        self.names = tuple(sync.declaration().columns)

    def serialize(self, obj: Any) -> Mapping[str, Any]:
        return {name: self.value_of(obj, name) for name in self.names}

    def value_of(self, obj: Any, name: str) -> Any:
        """The value of a column, as the database has it: by default the attribute of that name."""
        column = self.sync.read_column(name)
        if column is not None and column.many is not None:
            return self.keys_of(obj, column.many)
        value = getattr(obj, name)
        return value if column is None else column.make_value(value)

    def keys_of(self, obj: Any, many: Any) -> list[Any]:
        """A framework's part: the sorted keys of the other side of a many-to-many field or relationship."""
        raise NotImplementedError


def row_of(serialized: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """From a mapping, or anything with attributes of these names."""
    if isinstance(serialized, Mapping):
        if missing := [name for name in names if name not in serialized]:
            raise PermanentError(f"the serializer gave no value for the column {missing[0]!r}")
        return tuple(serialized[name] for name in names)
    if missing := [name for name in names if not hasattr(serialized, name)]:
        raise PermanentError(
            f"the serializer gave a {type(serialized).__name__} without {missing[0]!r}; give a mapping of columns"
        )
    return tuple(getattr(serialized, name) for name in names)
