"""Serializers of the user's own: an object of the model in, the values of the columns out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncehouse.sync.serialized_rows import Serializer

if TYPE_CHECKING:
    from oncehouse.sync.django.model_sync import ModelSync


class ModelSerializer(Serializer):
    """The base, which takes the column's value from the attribute of that name."""

    sync: type[ModelSync]

    def value_of(self, obj: Any, name: str) -> Any:
        column = self.sync.read_column(name)
        if column is not None and column.many is not None:
            return sorted(one.pk for one in getattr(obj, column.many.name).all())
        value = getattr(obj, name)
        if column is None:
            return value
        if value is None:
            return column.default
        return value if column.convert is None else column.convert(value)
