"""A column of a sync as a framework reads it: where its values come from, and what makes them fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ReadColumn:
    name: str
    type: str
    source: Any
    """What the framework selects; None where it is read by a query of its own."""
    many: Any = None
    """The many-to-many field or relationship, where it is one."""
    convert: Callable[[Any], Any] | None = None
    default: Any = None
    """In place of a null."""

    def make_value(self, value: Any) -> Any:
        if value is None:
            return self.default
        return value if self.convert is None else self.convert(value)
