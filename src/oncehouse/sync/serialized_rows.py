"""A row from what a user's serializer gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncehouse.errors import PermanentError


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
