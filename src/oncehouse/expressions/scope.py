"""Names that an expression may use: columns of the event and columns of look-ups, each under one engine name.

The engine ignores case and has one flat block of columns; events distinguish case and
have look-ups as well. The names of the one are translated into the other here, so that no two names collide.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oncehouse.column_types.types import ColumnType


class ExpressionError(ValueError):
    """An expression cannot be used; the text is advice."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """A column that an expression reads."""

    name: str
    """In the engine."""
    column: str
    lookup: str | None
    type: ColumnType


@dataclass(frozen=True, kw_only=True)
class Expression:
    """Compiled: ready to run, and small enough to travel with a task."""

    sql: str
    inputs: tuple[Input, ...]
    copied: Input | None = None
    """The whole expression is this column, so that its values need no engine."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    columns: Mapping[str, ColumnType]
    lookups: Mapping[str, Mapping[str, ColumnType]] = field(default_factory=dict)

    def inputs(self) -> tuple[Input, ...]:
        taken: set[str] = set()
        found = [
            Input(name=_free_name(name, taken), column=name, lookup=None, type=type_)
            for name, type_ in self.columns.items()
        ]
        for lookup, columns in self.lookups.items():
            found += [
                Input(name=_free_name(f"{lookup}.{name}", taken), column=name, lookup=lookup, type=type_)
                for name, type_ in columns.items()
            ]
        return tuple(found)

    def resolve(self, path: Sequence[str]) -> tuple[Input, tuple[str, ...]] | None:
        """The column that a dotted name begins with, and what of the name is left for its inside."""
        inputs = self.inputs()
        own = {found.column: found for found in inputs if found.lookup is None}
        if (name := _match(path[0], list(own))) is not None:
            return own[name], tuple(path[1:])
        lookup = _match(path[0], list(self.lookups))
        if lookup is None or len(path) == 1:
            return None
        joined = {found.column: found for found in inputs if found.lookup == lookup}
        name = _match(path[1], list(joined))
        return None if name is None else (joined[name], tuple(path[2:]))

    def nearest(self, path: Sequence[str]) -> str | None:
        known = [
            *self.columns,
            *(f"{lookup}.{name}" for lookup, names in self.lookups.items() for name in names),
        ]
        folded = {name.lower(): name for name in known}
        close = difflib.get_close_matches(".".join(path).lower(), folded, n=1, cutoff=0.6)
        return folded[close[0]] if close else None


def _match(name: str, known: Sequence[str]) -> str | None:
    """The name itself, or the only one that differs in capitals alone."""
    if name in known:
        return name
    folded = [candidate for candidate in known if candidate.lower() == name.lower()]
    return folded[0] if len(folded) == 1 else None


def _free_name(name: str, taken: set[str]) -> str:
    candidate, number = name, 1
    while candidate.lower() in taken:
        number += 1
        candidate = f"{name}~{number}"
    taken.add(candidate.lower())
    return candidate
