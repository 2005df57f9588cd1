"""Expectations: one query over the rows that a run would show, and what its figures mean. Pure.

A step's rows are those that its transform yields, looked at before they are inserted; a reload's or a range's are
those that were built aside. Nulls do not count as values out of bounds, NaN does. A run without rows breaks only
expectations that count rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.identifiers import quote
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.lineage.topic import Expectation, ExpectationKind, Otherwise, Template, Topic, Value

if TYPE_CHECKING:
    from oncehouse.etl.state.position import Range


class ExpectationError(PermanentError):
    """The rows are not what was expected; they did not go in."""


class ExpectationOutcome(StrEnum):
    HELD = "held"
    WARNED = "warned"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class ExpectationResult:
    """What became of one expectation."""

    expectation: str
    """As people read it."""
    outcome: ExpectationOutcome
    figure: str
    """What was found."""

    def __str__(self) -> str:
        return f"expected {self.expectation}, found {self.figure}"


def format_expectation(expectation: Expectation) -> str:
    """Such as `null_share(country) at most 5%`."""
    name = (
        f"{expectation.check}({', '.join(expectation.columns)})" if expectation.columns else expectation.check
    )
    format_figure = _format_share if expectation.check == ExpectationKind.NULL_SHARE else str
    bounds = [
        f"{word} {format_figure(bound)}"
        for word, bound in (("at least", expectation.at_least), ("at most", expectation.at_most))
        if bound is not None
    ]
    return f"{name} {' and '.join(bounds)}".strip()


def measure_sql(
    expectations: Sequence[Expectation], types: Mapping[str, str], *, rows_from: str, source_rows: str
) -> tuple[str, dict[str, Any]]:
    """A query of one row, and what it binds. `rows_from` is a table or a subquery, `source_rows` an expression."""
    bound: dict[str, Any] = {}
    figures = ["count()", source_rows]
    for number, expectation in enumerate(expectations):
        figures += _figures(expectation, types, number, bound)
    return f"SELECT {', '.join(figures)} FROM {rows_from}", bound  # noqa: S608 - names are quoted, values bound


def evaluate(expectations: Sequence[Expectation], row: Sequence[Any]) -> tuple[ExpectationResult, ...]:
    """What the figures of `measure_sql` mean."""
    rows, source_rows, *rest = row
    figures = iter(rest)
    return tuple(_evaluate(expectation, rows, source_rows, figures) for expectation in expectations)


def explain_stop(
    topic: Topic, span: Range, stopped: Sequence[ExpectationResult], *, job_kind: str = "", staging: str = ""
) -> str:
    """What did not hold, and how the topic can go on. `job_kind` is that of a backfill job; `aside` is the staging
    table of a reload or a range."""
    others = f" (and {len(stopped) - 1} more, see `oncehouse etl log checks`)" if len(stopped) > 1 else ""
    found = f"{stopped[0]}{others}"
    if topic.template != Template.STEP:
        how = f"What was built stands in {staging}. Each retry builds it again"
    elif job_kind:
        # No advice to seek: that would move the forward runs, which stand elsewhere.
        how = f"No row of this {job_kind}'s range went in. Each retry checks it, the forward runs go on"
    else:
        end = datetime.fromtimestamp(span.next.time_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6]
        how = (
            "No row of this range went in. It is looked at again with each retry; to leave its rows out: `oncehouse "
            f"etl seek {topic.topic} {end},{span.next.id}`"
        )
    return f"Topic {topic.topic} stopped: {found}. {how}; to let them in, change `expect` in the lineage."


def check_columns(expectations: Sequence[Expectation], columns: Sequence[str], *, where: str) -> None:
    """Refuse expectations on columns that the rows do not have."""
    for expectation in expectations:
        for column in expectation.columns:
            if column not in columns:
                raise ConfigurationError(
                    f"{where}: the expectation {format_expectation(expectation)} looks at a column that its transform "
                    f"does not yield; it yields {', '.join(columns)}."
                )


def _figures(
    expectation: Expectation, types: Mapping[str, str], number: int, bound: dict[str, Any]
) -> list[str]:
    names = [quote(column) for column in expectation.columns]
    match expectation.check:
        case ExpectationKind.ROWS | ExpectationKind.ROWS_PER_SOURCE_ROW:
            return []
        case ExpectationKind.NULL_SHARE:
            return [f"countIf(isNull({names[0]}))"]
        case ExpectationKind.UNIQUE:
            # One tuple: of several arguments, rows with a null would not be counted.
            return [f"count() - uniqExact(tuple({', '.join(names)}))"]
        case ExpectationKind.VALUE:
            type_ = types[expectation.columns[0]]
            conditions = [
                f"{names[0]} {sign} {_bind(value, type_, f'expect_{number}_{word}', bound)}"
                for sign, word, value in (
                    (">=", "least", expectation.at_least),
                    ("<=", "most", expectation.at_most),
                )
                if value is not None
            ]
            return [
                f"countIf(NOT ({' AND '.join(conditions)}))",
                f"toString(min({names[0]}))",
                f"toString(max({names[0]}))",
            ]


def _bind(value: Value, column_type: str, name: str, bound: dict[str, Any]) -> str:
    bound[name] = value
    match value:
        case int():
            return f"{{{name}:{'Int64' if value < 1 << 63 else 'UInt64'}}}"
        case float():
            return f"{{{name}:Float64}}"
        case str() if "Date" in column_type:
            return f"toDateTime64({{{name}:String}}, 3, 'UTC')"
        case str():
            return f"{{{name}:String}}"


def _evaluate(
    expectation: Expectation, rows: int, source_rows: int, figures: Iterator[Any]
) -> ExpectationResult:
    match expectation.check:
        case ExpectationKind.ROWS:
            holds, figure = _is_within(rows, expectation), f"{rows:,} rows"
        case ExpectationKind.ROWS_PER_SOURCE_ROW:
            holds = not source_rows or _is_within(rows / source_rows, expectation)
            figure = f"{rows:,} rows of {source_rows:,}" + (
                f" ({rows / source_rows:.4g})" if source_rows else ""
            )
        case ExpectationKind.NULL_SHARE:
            nulls = next(figures)
            holds = not rows or _is_within(nulls / rows, expectation)
            figure = f"{nulls:,} of {rows:,} rows" + (f" ({_format_share(nulls / rows)})" if rows else "")
        case ExpectationKind.UNIQUE:
            repeated = next(figures)
            holds, figure = not repeated, f"{repeated:,} of {rows:,} rows repeat others"
        case ExpectationKind.VALUE:
            outside, least, most = (next(figures) for _ in range(3))
            holds = not outside
            figure = f"{outside:,} of {rows:,} rows outside" + (f", from {least} to {most}" if rows else "")
    broken = (
        ExpectationOutcome.STOPPED if expectation.otherwise == Otherwise.STOP else ExpectationOutcome.WARNED
    )
    return ExpectationResult(
        expectation=format_expectation(expectation),
        outcome=ExpectationOutcome.HELD if holds else broken,
        figure=figure,
    )


def _is_within(figure: float, expectation: Expectation) -> bool:
    least, most = expectation.at_least, expectation.at_most
    # Bounds of counts and shares are numbers: the lineage refuses others.
    return not (
        (isinstance(least, int | float) and figure < least)
        or (isinstance(most, int | float) and figure > most)
    )


def _format_share(share: Value) -> str:
    return f"{float(share) * 100:.4g}%"
