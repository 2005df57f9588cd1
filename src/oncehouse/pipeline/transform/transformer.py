"""The transform between decoding and parts: rows are filtered, get more columns, and are routed to tables.

First `where` decides which events stay, then the columns are computed, then the user's function runs, last the
routes of tables. Decoded fields pass unchanged, so that an id never depends on what is computed here. A row that
cannot be transformed is rejected, and costs its neighbours nothing. What a part holds is never computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.expressions.evaluator import Evaluation, Evaluator
from oncehouse.expressions.scope import Expression, Input
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.convert.convert import convert
from oncehouse.pipeline.convert.masks import Mask
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.convert.value_errors import explain_value
from oncehouse.pipeline.formats.base import Decoded, Decoder, Places
from oncehouse.pipeline.transform.lookup_join import LoadedLookup, open_lookups
from oncehouse.pipeline.transform.plan import TransformPlan
from oncehouse.pipeline.transform.user_function import Function, call_function, load_function


@dataclass(frozen=True, kw_only=True)
class Transformed:
    rows: pa.RecordBatch
    """The decoded fields, the columns of the plan, and a column of true and false a route."""
    taken: Places
    """Place of each row among those that came, ascending."""
    rejected: tuple[Rejection, ...]
    skipped: Places


class TransformingDecoder:
    """A decoder whose rows come transformed."""

    def __init__(self, decoder: Decoder, transformer: Transformer) -> None:
        self._decoder = decoder
        self._transformer = transformer

    def decode(self, block: pa.RecordBatch) -> Decoded:
        decoded = self._decoder.decode(block)
        transformed = self._transformer.transform(decoded.rows)
        failed = [replace(found, index=int(decoded.taken[found.index])) for found in transformed.rejected]
        rejected = sorted((*decoded.rejected, *failed), key=lambda rejection: rejection.index)
        return replace(
            decoded,
            rows=transformed.rows,
            taken=decoded.taken[transformed.taken],
            rejected=tuple(rejected),
            skipped=np.sort(np.concatenate([decoded.skipped, decoded.taken[transformed.skipped]])),
            schemas=decoded.schemas and decoded.schemas.take(pa.array(transformed.taken)),
        )


class Transformer:
    """Made once a task: it holds an engine, the look-ups and the function."""

    def __init__(self, plan: TransformPlan, store: FileStore) -> None:
        self._plan = plan
        self._evaluator = Evaluator()
        self._lookups = open_lookups(store, plan.lookups)
        self._fields = {lookup.name: lookup.field for lookup in plan.lookups}
        self._function: Function | None = None if plan.function is None else load_function(plan.function)

    def transform(self, rows: pa.RecordBatch) -> Transformed:
        block = _TransformBlock(rows)
        self._filter(block)
        self._compute(block)
        self._call(block)
        self._route(block)
        return block.finish()

    def _filter(self, block: _TransformBlock) -> None:
        if self._plan.where is None:
            return
        (outcome,) = self._evaluate([self._plan.where], block)
        wanted = _is_true(outcome.values)
        block.keep(wanted, failures=_name_failures("where", outcome))

    def _compute(self, block: _TransformBlock) -> None:
        columns = [column for column in self._plan.columns if column.expression is not None]
        if not columns:
            return
        outcomes = self._evaluate([column.expression for column in columns if column.expression], block)
        failures: dict[int, str] = {}
        for column, outcome in zip(columns, outcomes, strict=True):
            converted = convert(outcome.values, column.type)
            block.columns[column.name] = converted.array
            mismatches = () if converted.bad is None else np.flatnonzero(converted.bad).tolist()
            found = _name_failures(column.name, outcome)
            for row in mismatches:
                if row not in found and row not in failures:
                    found[row] = f"{column.name}: {explain_value(outcome.values[row], column.type)}"
            failures = found | failures
        block.keep(None, failures=failures)

    def _call(self, block: _TransformBlock) -> None:
        if self._function is None:
            return
        wanted = {column.name: column.type for column in self._plan.columns if column.expression is None}
        given = call_function(self._function, pa.Table.from_pydict(block.columns), wanted)
        stay = np.zeros(block.rows, dtype=np.bool_)
        stay[given.rows] = True
        block.keep(stay, failures=given.failures)
        block.columns |= given.columns

    def _route(self, block: _TransformBlock) -> None:
        outcomes = self._evaluate([route.expression for route in self._plan.routes], block)
        failures: dict[int, str] = {}
        for route, outcome in zip(self._plan.routes, outcomes, strict=True):
            block.columns[route.column] = pa.array(_is_true(outcome.values))
            failures = _name_failures(f"route of {route.table}", outcome) | failures
        block.keep(None, failures=failures)

    def _evaluate(self, expressions: Sequence[Expression], block: _TransformBlock) -> list[Evaluation]:
        def column_of(wanted: Input) -> pa.Array:
            if wanted.lookup is None:
                return block.columns[wanted.column]
            return self._join(wanted.lookup, block).take(wanted.column, block.matches[wanted.lookup])

        return self._evaluator.evaluate(expressions, column_of, rows=block.rows)

    def _join(self, name: str, block: _TransformBlock) -> LoadedLookup:
        if name not in block.matches:
            block.matches[name] = self._lookups[name].find(block.columns[self._fields[name]])
        return self._lookups[name]


class _TransformBlock:
    """The rows that are still on their way through the transformer, and what became of the others."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.columns: dict[str, pa.Array] = dict(zip(rows.schema.names, rows.columns, strict=True))
        self._places = np.arange(rows.num_rows, dtype=np.int64)
        self.matches: dict[str, pa.Array] = {}
        """For each look-up that was asked, the row of it that belongs to each event."""
        self._rejected: list[Rejection] = []
        self._skipped: list[Places] = []

    @property
    def rows(self) -> int:
        return len(self._places)

    def keep(self, wanted: Mask | None, *, failures: Mapping[int, str]) -> None:
        """Reject what failed, skip what else is not wanted, and go on with the rest."""
        stay = np.ones(self.rows, dtype=np.bool_) if wanted is None else wanted.copy()
        if failures:
            failed = np.fromiter(failures, dtype=np.int64, count=len(failures))
            stay[failed] = True
            self._rejected += [
                RejectionCause(reason=Reason.NOT_TRANSFORMED, detail=text).at(int(self._places[row]))
                for row, text in failures.items()
            ]
        self._skipped.append(self._places[~stay])
        if failures:
            stay[failed] = False
        if stay.all():
            return
        mask = pa.array(stay)
        self.columns = {name: column.filter(mask) for name, column in self.columns.items()}
        self.matches = {name: rows.filter(mask) for name, rows in self.matches.items()}
        self._places = self._places[stay]

    def finish(self) -> Transformed:
        return Transformed(
            rows=pa.RecordBatch.from_pydict(self.columns),
            taken=self._places,
            rejected=tuple(self._rejected),
            skipped=np.concatenate([np.zeros(0, dtype=np.int64), *self._skipped]),
        )


def _is_true(values: pa.Array) -> Mask:
    """Null is not true."""
    mask: Mask = pc.fill_null(values.cast(pa.bool_()), fill_value=False).to_numpy(zero_copy_only=False)
    return mask


def _name_failures(column: str, outcome: Evaluation) -> dict[int, str]:
    return {row: f"{column}: {text}" for row, text in outcome.failures.items()}
