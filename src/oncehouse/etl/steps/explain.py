"""Operations in words, as `oncehouse etl plan` prints them: the statements that a run sends, with what they bind."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from oncehouse.clickhouse.identifiers import quote_table
from oncehouse.etl.quality.expectations import format_expectation
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.topic_lease import INSERTING
from oncehouse.etl.steps.operation_builder import BLOCK_ROWS
from oncehouse.etl.steps.operations import (
    DropStagingTables,
    Exchange,
    Execute,
    Expect,
    FixRange,
    Freeze,
    Insert,
    MarkCovered,
    Operation,
    RangeSize,
    ReplacePartitions,
    WriteJobRange,
    WriteLast,
    WriteNext,
)

_OUTPUT_NAMES: Mapping[type[Operation], str] = {WriteJobRange: "WriteSide", DropStagingTables: "ClearAside"}
"""Where the JSON of `etl plan` has another name than the class."""


def operation_name(operation: Operation) -> str:
    return _OUTPUT_NAMES.get(type(operation), type(operation).__name__)


def explain(operation: Operation) -> str:  # noqa: C901, PLR0911, PLR0912 - one line an operation
    """One operation as `plan` prints it."""
    match operation:
        case WriteNext():
            return f"write next = {_format_position(operation.next)}, state {operation.state}"
        case WriteJobRange():
            return (
                f"write last = {_format_position(operation.opened.last)}, "
                f"next = {_format_position(operation.opened.next)} for the "
                f"{operation.job_kind}, and keep where the forward runs are"
            )
        case MarkCovered():
            after, upto = _format_position(operation.after), _format_position(operation.upto)
            return f"no rows after {after} up to {upto}: covered"
        case Freeze():
            return (
                f"write into {quote_table(operation.table)} which rows of the range the table does not hold"
            )
        case RangeSize():
            return f"count the transform's rows, halve next while they are more than {BLOCK_ROWS}"
        case Expect():
            expected = "".join(
                f"\n  expect {format_expectation(one)}, otherwise {one.otherwise}"
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
        case DropStagingTables():
            return f"drop what earlier runs have left of {quote_table(operation.dst)}"
        case Exchange():
            return (
                f"EXCHANGE TABLES {quote_table(operation.dst)} AND {quote_table(operation.staging)}, "
                f"if it has {operation.gate_share:.0%} of the rows or more"
            )
        case ReplacePartitions():
            return (
                f"ALTER TABLE {quote_table(operation.dst)} REPLACE PARTITION … FROM {quote_table(operation.staging)}, "
                f"if each has {operation.gate_share:.0%} of its rows or more"
            )
        case WriteLast():
            return f"write last = next, rows = {operation.rows}, state {operation.state}"


def _explain_bound(parameters: Mapping[str, Any]) -> str:
    return "".join(f"\n  {name} = {value}" for name, value in parameters.items())


def _format_position(position: Position) -> str:
    if position == START:
        return "the start"
    moment = datetime.fromtimestamp(position.time_ms / 1000, UTC)
    return f"({moment:%Y-%m-%d %H:%M:%S}.{position.time_ms % 1000:03d}, {position.id})"
