"""Operations in words, as `oncehouse etl plan` prints them: the statements that a run sends, with what they bind."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from oncehouse.clickhouse.identifiers import quote_table
from oncehouse.etl.quality.expectations import spell_expectation
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.topic_lease import INSERTING
from oncehouse.etl.steps.operation_builder import BLOCK_ROWS
from oncehouse.etl.steps.operations import (
    ClearAside,
    Exchange,
    Execute,
    Expect,
    Fit,
    FixRange,
    Freeze,
    Insert,
    MarkCovered,
    Operation,
    ReplacePartitions,
    WriteLast,
    WriteNext,
    WriteSide,
)


def explain(operation: Operation) -> str:  # noqa: C901, PLR0911, PLR0912 - one line an operation
    """One operation as `plan` prints it."""
    match operation:
        case WriteNext():
            return f"write next = {_spell(operation.next)}, state {operation.state}"
        case WriteSide():
            return (
                f"write last = {_spell(operation.opened.last)}, next = {_spell(operation.opened.next)} for the "
                f"{operation.lane}, and keep where the forward runs are"
            )
        case MarkCovered():
            return f"no rows after {_spell(operation.after)} up to {_spell(operation.upto)}: covered"
        case Freeze():
            return (
                f"write into {quote_table(operation.table)} which rows of the range the table does not hold"
            )
        case Fit():
            return f"count the transform's rows, halve next while they are more than {BLOCK_ROWS}"
        case Expect():
            expected = "".join(
                f"\n  expect {spell_expectation(one)}, otherwise {one.otherwise}"
                for one in operation.expectations
            )
            return f"{operation.sql}{_explain_bound(operation.parameters)}{expected}"
        case FixRange():
            return f"write state {INSERTING}: the range is fixed"
        case Execute():
            return f"{operation.sql}{_explain_bound(operation.parameters)}"
        case Insert():
            bound = _explain_bound(operation.parameters)
            return f"{operation.sql}\n  as one block, token {operation.token}{bound}"
        case ClearAside():
            return f"drop what earlier runs have left beside {quote_table(operation.dst)}"
        case Exchange():
            return (
                f"EXCHANGE TABLES {quote_table(operation.dst)} AND {quote_table(operation.aside)}, "
                f"if it has {operation.gate_share:.0%} of the rows or more"
            )
        case ReplacePartitions():
            return (
                f"ALTER TABLE {quote_table(operation.dst)} REPLACE PARTITION … FROM {quote_table(operation.aside)}, "
                f"if each has {operation.gate_share:.0%} of its rows or more"
            )
        case WriteLast():
            return f"write last = next, rows = {operation.rows}, state {operation.state}"


def _explain_bound(parameters: Mapping[str, Any]) -> str:
    return "".join(f"\n  {name} = {value}" for name, value in parameters.items())


def _spell(position: Position) -> str:
    if position == START:
        return "the start"
    moment = datetime.fromtimestamp(position.time_ms / 1000, UTC)
    return f"({moment:%Y-%m-%d %H:%M:%S}.{position.time_ms % 1000:03d}, {position.id})"
