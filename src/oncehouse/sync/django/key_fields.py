"""The fields of a model's primary key; Django before 5.2 knows keys of one field only."""

from __future__ import annotations

from typing import Any


def key_fields(model: Any) -> tuple[Any, ...]:
    meta = model._meta  # noqa: SLF001 - Django's public door to a model
    return tuple(getattr(meta, "pk_fields", None) or (meta.pk,))
