"""A user's own function on a block of events: how it is loaded, what it must give back, and what its errors cost.

It gets a table with one row an event and the column `_row`, and gives back a table with `_row` and the columns
declared for it. Rows that it leaves out are skipped. Whatever it raises, or gives back against this contract,
is narrowed by halving the block to the events that cause it; those are rejected, their neighbours are not.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from oncehouse.column_types.types import ColumnType, arrow_type
from oncehouse.config.transform import ROW_COLUMN as ROW
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.convert.convert import convert
from oncehouse.pipeline.convert.value_errors import explain_value
from oncehouse.pipeline.formats.base import Places
from oncehouse.pipeline.transform.plan import FunctionPlan

Function = Callable[[pa.Table], Any]


@dataclass(frozen=True, kw_only=True)
class FunctionResult:
    """What the function gave for a block."""

    rows: Places
    """Those that it gave back, ascending."""
    columns: Mapping[str, pa.Array]
    failures: Mapping[int, str]


@lru_cache(maxsize=4)
def load_function(plan: FunctionPlan) -> Function:
    """The function itself; raises ConfigurationError when the file does not hold it."""
    digest = hashlib.sha256(plan.source.encode()).hexdigest()[:16]
    module = ModuleType(f"oncehouse_shape_{digest}")
    module.__file__ = plan.file
    # Classes of the file look for their module by its name.
    sys.modules[module.__name__] = module
    try:
        exec(compile(plan.source, plan.file, "exec"), module.__dict__)  # noqa: S102 - what a user's function is for
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        raise ConfigurationError(
            f"shape.function: {plan.file} cannot be loaded ({type(error).__name__}: {error}). Only packages that are "
            "installed where Spark's workers run can be imported in it."
        ) from error
    found = getattr(module, plan.name, None)
    if not callable(found):
        raise ConfigurationError(f"shape.function: {plan.file} has no function {plan.name!r}")
    return found  # type: ignore[no-any-return]


def check_function(plan: FunctionPlan, given: pa.Schema, wanted: Mapping[str, ColumnType]) -> None:
    """Call it with no event at all; raises ConfigurationError when it does not keep to its contract."""
    table = number_rows(given.empty_table())
    try:
        _take_result(load_function(plan)(table), table, wanted)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigurationError(
            f"shape.function: {plan.name} of {plan.file} fails for a table without rows ({type(error).__name__}: "
            f"{error}). It is called so before any data moves: let it give back an empty table with {ROW!r} and "
            f"{', '.join(map(repr, wanted))}."
        ) from error


def number_rows(table: pa.Table) -> pa.Table:
    return table.add_column(0, ROW, pa.array(np.arange(table.num_rows, dtype=np.int64)))


def call_function(function: Function, block: pa.Table, wanted: Mapping[str, ColumnType]) -> FunctionResult:
    """Call it with the whole block, and with smaller pieces only where it fails."""
    failures: dict[int, str] = {}
    pieces = list(_call(function, number_rows(block), wanted, failures))
    columns = {
        name: pa.concat_arrays([piece[1][name] for piece in pieces])
        if pieces
        else pa.nulls(0, arrow_type(type_))
        for name, type_ in wanted.items()
    }
    rows = [piece[0] for piece in pieces]
    return FunctionResult(
        rows=np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64), columns=columns, failures=failures
    )


_Piece = tuple[Places, dict[str, pa.Array]]


def _call(
    function: Function, block: pa.Table, wanted: Mapping[str, ColumnType], failures: dict[int, str]
) -> Iterator[_Piece]:
    if not block.num_rows:
        return
    first = block.column(ROW)[0].as_py()
    try:
        rows, columns = _take_result(function(block), block, wanted)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        if block.num_rows == 1:
            failures[first] = f"function: {type(error).__name__}: {error}"
            return
        half = block.num_rows // 2
        yield from _call(function, block.slice(0, half), wanted, failures)
        yield from _call(function, block.slice(half), wanted, failures)
        return
    yield _convert_columns(rows, columns, wanted, failures)


def _take_result(result: Any, block: pa.Table, wanted: Mapping[str, ColumnType]) -> tuple[Places, pa.Table]:
    if isinstance(result, pa.RecordBatch):
        result = pa.Table.from_batches([result])
    if not isinstance(result, pa.Table):
        raise TypeError(f"must give back a pyarrow Table, not {type(result).__name__}")
    missing = [name for name in (ROW, *wanted) if result.column_names.count(name) != 1]
    if missing:
        raise ValueError(f"must give back the column {missing[0]!r} once")
    given = result.column(ROW)
    if not pa.types.is_integer(given.type) or given.null_count:
        raise TypeError(f"must give back {ROW!r} as it got it: whole numbers, none missing")
    rows: Places = given.to_numpy().astype(np.int64)
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    first = block.column(ROW)[0].as_py() if block.num_rows else 0
    if len(rows) and (rows[0] < first or rows[-1] >= first + block.num_rows or np.any(rows[1:] == rows[:-1])):
        raise ValueError(f"must give back each {ROW!r} at most once, and only those it got")
    in_order = bool(np.all(order[1:] > order[:-1]))
    return rows, result.select(list(wanted)) if in_order else result.select(list(wanted)).take(
        pa.array(order)
    )


def _convert_columns(
    rows: Places, table: pa.Table, wanted: Mapping[str, ColumnType], failures: dict[int, str]
) -> _Piece:
    bad = np.zeros(len(rows), dtype=np.bool_)
    columns = {}
    for name, type_ in wanted.items():
        given = table.column(name).combine_chunks()
        converted = convert(given, type_)
        columns[name] = converted.array
        if converted.bad is not None:
            for place in np.flatnonzero(converted.bad & ~bad).tolist():
                failures[int(rows[place])] = f"{name}: {explain_value(given[place], type_)}"
            bad |= converted.bad
    if not bad.any():
        return rows, columns
    good = pa.array(~bad)
    return rows[~bad], {name: column.filter(good) for name, column in columns.items()}
