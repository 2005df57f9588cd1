"""The plan of a transformation: expressions, look-ups, the function, the routes. Plain values.

Nothing here needs the engine, so that a plan can be read where nothing is transformed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oncehouse.column_types.types import ColumnType
from oncehouse.expressions.scope import Expression
from oncehouse.ledger.models import FileRef


@dataclass(frozen=True, kw_only=True)
class PinnedLookup:
    """The content of a look-up for an epoch, and the field of the event that leads into it."""

    name: str
    field: str
    file: FileRef


@dataclass(frozen=True, kw_only=True)
class FunctionPlan:
    """The text of the user's file travels with the plan, so that all tasks of an epoch run the same."""

    file: str
    name: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    name: str
    type: ColumnType
    expression: Expression | None
    """None for a column that the function gives."""


@dataclass(frozen=True, kw_only=True)
class RoutePlan:
    """A table that takes the events for which the expression is true, marked by a column that no part holds."""

    table: str
    column: str
    expression: Expression


@dataclass(frozen=True, kw_only=True)
class TransformPlan:
    """All that a transformation needs in a task; picklable."""

    lookups: tuple[PinnedLookup, ...] = ()
    where: Expression | None = None
    columns: tuple[ColumnPlan, ...] = ()
    function: FunctionPlan | None = None
    routes: tuple[RoutePlan, ...] = ()

    @property
    def types(self) -> dict[str, ColumnType]:
        return {column.name: column.type for column in self.columns}

    def for_table(self, name: str) -> TransformPlan:
        return replace(self, routes=tuple(route for route in self.routes if route.table == name))


def route_column(table: int) -> str:
    """The column that says whether a table takes a row; no declared name can hold a control character."""
    return f"\0route {table}"
