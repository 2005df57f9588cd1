"""Serializers of the user's own: an object of the mapped class in, the values of the columns out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncehouse.sync.serialized_rows import Serializer

if TYPE_CHECKING:
    from oncehouse.sync.sqlalchemy.model_sync import ModelSync


class ModelSerializer(Serializer):
    """The base, which takes the column's value from the attribute of that name."""

    sync: type[ModelSync]

    def value_of(self, obj: Any, name: str) -> Any:
        column = self.sync.read_column(name)
        if column is not None and column.many is not None:
            return column.many.keys_of(obj)
        value = getattr(obj, name)
        return value if column is None else column.make_value(value)
