"""Expressions over a block of columns: one query for all of them, and failures kept to the rows that fail.

The block is computed as it is first. Only when that fails each value is computed under guard, still by one
query: rows that fail are then known, and the engine is asked for the words of a few of them. A failure that no
guard catches, such as a lack of memory, is narrowed by halving the block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np
import pyarrow as pa

from oncehouse.expressions.compiler import BLOCK, guarded
from oncehouse.expressions.duckdb_engine import engine_field, first_line, open_engine, plain_values
from oncehouse.expressions.scope import Expression, Input

_MOST_EXPLAINED = (
    20  # rows of a block and column that are computed once more, alone, for the words of their failure
)
_FAILURES = (duckdb.Error, pa.ArrowException, MemoryError)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    values: pa.Array
    failures: Mapping[int, str] = field(default_factory=dict)
    """Rows whose value could not be computed, and why; their place in `values` means nothing."""


class Evaluator:
    """Holds an engine; one a task."""

    def __init__(self) -> None:
        self._engine = open_engine()

    def evaluate(
        self, expressions: Sequence[Expression], column_of: Callable[[Input], pa.Array], *, rows: int
    ) -> list[Evaluation]:
        """One outcome an expression; `column_of` gives the column that an input stands for."""
        computed = [expression for expression in expressions if expression.copied is None]
        outcomes = iter(self._compute(computed, _gather(computed, column_of, rows)) if computed else ())
        return [
            next(outcomes) if expression.copied is None else Evaluation(values=column_of(expression.copied))
            for expression in expressions
        ]

    def _compute(self, expressions: Sequence[Expression], block: pa.Table) -> list[Evaluation]:
        try:
            arrays = self._run([f"({expression.sql})" for expression in expressions], block)
        except _FAILURES as error:
            self._recover(error)
            return self._compute_guarded(expressions, block)
        return [Evaluation(values=array) for array in arrays]

    def _compute_guarded(self, expressions: Sequence[Expression], block: pa.Table) -> list[Evaluation]:
        try:
            arrays = self._run([guarded(expression.sql) for expression in expressions], block)
        except _FAILURES as error:
            self._recover(error)
            if block.num_rows > 1:
                return self._compute_halves(expressions, block)
            if len(expressions) > 1:
                return [self._compute_guarded([expression], block)[0] for expression in expressions]
            return [Evaluation(values=pa.nulls(1), failures={0: _explain_error(error)})]
        return [
            Evaluation(values=array.flatten()[0], failures=self._explain(expression, block, array))
            for expression, array in zip(expressions, arrays, strict=True)
        ]

    def _compute_halves(self, expressions: Sequence[Expression], block: pa.Table) -> list[Evaluation]:
        half = block.num_rows // 2
        first = self._compute_guarded(expressions, block.slice(0, half))
        second = self._compute_guarded(expressions, block.slice(half))
        return [_join(left, right, half) for left, right in zip(first, second, strict=True)]

    def _explain(self, expression: Expression, block: pa.Table, guarded_values: pa.Array) -> dict[int, str]:
        failed = np.flatnonzero(guarded_values.is_null().to_numpy(zero_copy_only=False)).tolist()
        explained = {
            row: self._explain_row(expression, block.slice(row, 1)) for row in failed[:_MOST_EXPLAINED]
        }
        return {
            row: explained.get(row) or f"fails as others of its block: {explained[failed[0]]}"
            for row in failed
        }

    def _explain_row(self, expression: Expression, row: pa.Table) -> str:
        try:
            self._run([f"({expression.sql})"], row)
        except _FAILURES as error:
            self._recover(error)
            return _explain_error(error)
        return "cannot be computed"

    def _run(self, selected: Sequence[str], block: pa.Table) -> list[pa.Array]:
        self._engine.register(BLOCK, block)
        items = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(selected))
        result = self._engine.sql(f"SELECT {items} FROM {BLOCK}").to_arrow_table()  # noqa: S608 - compiled
        return [plain_values(column.combine_chunks()) for column in result.columns]

    def _recover(self, error: BaseException) -> None:
        # After an error of its own the engine refuses all further work; the next rows need a sound one.
        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            self._engine.close()
            self._engine = open_engine()


def _gather(expressions: Sequence[Expression], column_of: Callable[[Input], pa.Array], rows: int) -> pa.Table:
    inputs = {found.name: found for expression in expressions for found in expression.inputs}
    fields = [pa.field("", pa.int8())]
    arrays = [pa.nulls(rows, pa.int8())]
    for name, found in inputs.items():
        entering, array = engine_field(name, found.type), column_of(found)
        if entering is not None:  # always: no other column is computed with
            fields.append(entering)
            arrays.append(array if array.type == entering.type else array.cast(entering.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _join(left: Evaluation, right: Evaluation, border: int) -> Evaluation:
    values = left.values, right.values
    # A half of one failed row knows no type.
    kind = next((array.type for array in values if not pa.types.is_null(array.type)), pa.null())
    failures = dict(left.failures) | {border + row: text for row, text in right.failures.items()}
    return Evaluation(values=pa.concat_arrays([array.cast(kind) for array in values]), failures=failures)


def _explain_error(error: BaseException) -> str:
    return first_line(error) if isinstance(error, duckdb.Error) else f"{type(error).__name__}: {error}"
