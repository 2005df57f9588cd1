"""The section `shape` of the pipeline file, and what its expressions come to.

Expressions are compiled where they are read, so that a wrong one is reported with its line before any data moves;
what they were compiled to goes on to the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from oncehouse.config.base import Section
from oncehouse.config.field_types import ColumnTypeText, Name
from oncehouse.config.problems import Path, Problem, nearest

if TYPE_CHECKING:
    from oncehouse.column_types.types import ColumnType
    from oncehouse.config.pipeline import Table
    from oncehouse.expressions.compiler import Compiler
    from oncehouse.expressions.scope import Expression

LOOKUP_SUFFIXES = (".parquet", ".csv", ".json", ".jsonl", ".ndjson")
ROW_COLUMN = "_row"


class Lookup(Section):
    file: str = Field(min_length=1)
    """Parquet, CSV with a header, or JSON (objects in lines or in a list); relative to the pipeline file."""
    key: Name
    """Column of the file whose value leads to a row; each value stands in it once."""
    field: Name | None = None
    """Field of the event that holds the key; the one of the key's name when left out."""
    columns: dict[Name, ColumnTypeText] = Field(min_length=1)
    """Columns of the file that expressions may use, and their ClickHouse types."""

    @field_validator("file")
    @classmethod
    def _file_is_known(cls, file: str) -> str:
        if PurePath(file).suffix.lower() not in LOOKUP_SUFFIXES:
            raise ValueError(f"must end with {', '.join(LOOKUP_SUFFIXES[:-1])} or {LOOKUP_SUFFIXES[-1]}")
        return file

    @property
    def event_field(self) -> str:
        return self.field or self.key


class ComputedColumn(Section):
    type: ColumnTypeText
    """ClickHouse type of the column."""
    sql: str | None = None
    """Expression over the event's fields and the look-ups; left out for a column that the function gives."""


class Function(Section):
    file: str = Field(min_length=1)
    """Python file that holds the function; relative to the pipeline file."""
    name: str
    """Name of the function: it takes a pyarrow Table and gives one back."""

    @field_validator("name")
    @classmethod
    def _name_is_python(cls, name: str) -> str:
        if not name.isidentifier():
            raise ValueError(f"{name!a} is no name of a Python function")
        return name


class TransformSection(Section):
    lookups: dict[Name, Lookup] = Field(default_factory=dict)
    """Small reference tables; expressions name their columns `lookup.column`. Pinned for each epoch."""
    where: str | None = None
    """Only events for which this expression is true go on; the others are counted as skipped."""
    columns: dict[Name, ComputedColumn] = Field(default_factory=dict)
    """Further columns, which tables may name like fields of the event."""
    function: Function | None = None
    """A Python function that runs after the expressions."""


@dataclass(frozen=True, kw_only=True)
class Expressions:
    """The compiled expressions of a pipeline."""

    where: Expression | None = None
    columns: Mapping[str, Expression] = field(default_factory=dict)
    routes: Mapping[int, Expression] = field(default_factory=dict)
    """By the place of the table."""


@dataclass(frozen=True, kw_only=True)
class CompiledTransform:
    problems: tuple[Problem, ...] = ()
    expressions: Expressions = field(default_factory=Expressions)


def compile_transform(
    fields: Mapping[str, str], shape: TransformSection, tables: Sequence[Table | None]
) -> CompiledTransform:
    """What does not fit together in the section, and what its expressions and the tables' routes come to."""
    routes = {
        at: table.route.where
        for at, table in enumerate(tables)
        if table is not None and table.route is not None and table.route.where is not None
    }
    if not routes and shape == TransformSection():
        return CompiledTransform()
    return _compile_once(tuple(fields.items()), shape.model_dump_json(), tuple(routes.items()))


@lru_cache(maxsize=8)
def _compile_once(
    fields: tuple[tuple[str, str], ...], section_json: str, routes: tuple[tuple[int, str], ...]
) -> CompiledTransform:
    """Kept, because every epoch asks again: fields may have been learnt meanwhile."""
    from oncehouse.column_types.parser import parse_type  # loads Arrow, which most commands do not need

    shape = TransformSection.model_validate_json(section_json)
    types = {name: parse_type(text) for name, text in fields}
    problems = tuple(
        Problem(path=("shape", *problem.path), text=problem.text) for problem in _check_names(types, shape)
    )
    if problems or not (shape.where or shape.columns or routes):
        return CompiledTransform(problems=problems)
    return _compile_all(types, shape, dict(routes))


def _check_names(types: Mapping[str, ColumnType], shape: TransformSection) -> Iterator[Problem]:
    for name, column in shape.columns.items():
        if name in types:
            yield Problem(
                path=("columns", name),
                text="is a field of the event already; choose another name, and name it in the table's columns",
            )
        if column.sql is None and shape.function is None:
            yield Problem(path=("columns", name), text="has no `sql`, and there is no function to give it")
    for name, lookup in shape.lookups.items():
        if name in types or name in shape.columns:
            yield Problem(path=("lookups", name), text="is a column already; choose another name")
        yield from _check_lookup(name, lookup, types)
    if shape.function is not None and ROW_COLUMN in {*types, *shape.columns}:
        yield Problem(
            path=("function",), text=f"numbers its rows by {ROW_COLUMN!r}; rename the column {ROW_COLUMN!r}"
        )


def _check_lookup(name: str, lookup: Lookup, types: Mapping[str, ColumnType]) -> Iterator[Problem]:
    from oncehouse.column_types.types import bare, clickhouse_name

    path: Path = ("lookups", name, "field" if lookup.field else "key")
    found = types.get(lookup.event_field)
    if found is None:
        hint = nearest(lookup.event_field, types)
        problem = f"{lookup.event_field!r} is not declared in source.fields"
        yield Problem(path=path, text=f"{problem}; did you mean {hint!r}?" if hint else problem)
    elif not _can_be_key(bare(found)):
        yield Problem(
            path=path, text=f"{clickhouse_name(found)} cannot lead into a look-up; use an integer or text"
        )


def _can_be_key(type_: ColumnType) -> bool:
    from oncehouse.column_types import types as c

    if isinstance(type_, c.Integer):
        return type_.bits <= 64
    return isinstance(type_, c.String | c.FixedString | c.Enum | c.Uuid | c.Date | c.DateTime | c.DateTime64)


def _compile_all(
    types: Mapping[str, ColumnType], shape: TransformSection, routes: Mapping[int, str]
) -> CompiledTransform:
    from oncehouse.column_types.parser import parse_type
    from oncehouse.column_types.types import Nullable
    from oncehouse.expressions.compiler import Compiler
    from oncehouse.expressions.scope import Scope

    truth = Nullable(inner=parse_type("Bool"))
    problems: list[Problem] = []
    lookups = {
        name: {column: parse_type(text) for column, text in lookup.columns.items()}
        for name, lookup in shape.lookups.items()
    }
    computed = {name: parse_type(column.type) for name, column in shape.columns.items()}
    with Compiler(Scope(columns=types, lookups=lookups)) as compiler:
        where = shape.where and _compile(compiler, shape.where, truth, ("shape", "where"), problems)
        columns = {
            name: _compile(compiler, column.sql, computed[name], ("shape", "columns", name, "sql"), problems)
            for name, column in shape.columns.items()
            if column.sql is not None
        }
    routed = {}
    if routes:
        with Compiler(Scope(columns={**types, **computed}, lookups=lookups)) as compiler:
            routed = {
                at: _compile(compiler, text, truth, ("tables", at, "route", "where"), problems)
                for at, text in routes.items()
            }
    if problems:
        return CompiledTransform(problems=tuple(problems))
    return CompiledTransform(
        expressions=Expressions(
            where=where or None,
            columns={name: made for name, made in columns.items() if made},
            routes={at: made for at, made in routed.items() if made},
        )
    )


def _compile(
    compiler: Compiler, text: str, type_: ColumnType, path: Path, problems: list[Problem]
) -> Expression | None:
    from oncehouse.expressions.scope import ExpressionError

    try:
        return compiler.compile(text, type_)
    except ExpressionError as error:
        problems.append(Problem(path=path, text=str(error)))
        return None
