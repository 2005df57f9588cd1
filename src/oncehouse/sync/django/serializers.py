"""Serializers of the user's own: an object of the model in, the values of the columns out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncehouse.sync.model.serializer import Serializer

if TYPE_CHECKING:
    from oncehouse.sync.django.model_sync import ModelSync


class ModelSerializer(Serializer):
    sync: type[ModelSync]

    def keys_of(self, obj: Any, many: Any) -> list[Any]:
        return sorted(one.pk for one in getattr(obj, many.name).all())
