"""The driver's part of a transformation: compiled expressions, pinned look-ups, the text of the function.

Done for every epoch, so that a look-up or function that has changed is taken up by the next one, and all
tasks and retries of an epoch see the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import ColumnType, arrow_type
from oncehouse.common.formatting import format_bytes
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.transform.plan import ColumnPlan, FunctionPlan, RoutePlan, TransformPlan, route_column

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Function, Pipeline

_MAX_SOURCE_BYTES = 1 << 20


def plan_transform(pipeline: Pipeline, *, token: int, files_root: str | None = None) -> TransformPlan | None:
    """None when there is nothing to transform; `files_root` is where look-ups are pinned, if not in the ledger."""
    shape, compiled = pipeline.shape, pipeline.expressions
    if not (shape.columns or shape.function or compiled.where or compiled.routes):
        return None
    from oncehouse.pipeline.transform.lookup_tables import pin_lookups

    return TransformPlan(
        lookups=pin_lookups(pipeline, FileStore(files_root or pipeline.ledger.files), token=token),
        where=compiled.where,
        columns=tuple(
            ColumnPlan(name=name, type=parse_type(column.type), expression=compiled.columns.get(name))
            for name, column in shape.columns.items()
        ),
        function=None if shape.function is None else _read_function(shape.function),
        routes=tuple(
            RoutePlan(table=pipeline.tables[at].name, column=route_column(at), expression=expression)
            for at, expression in compiled.routes.items()
        ),
    )


def check_transform(pipeline: Pipeline) -> None:
    """Read every look-up and call the function with no event; raises ConfigurationError. Nothing is written."""
    if not (pipeline.shape.lookups or pipeline.shape.function):
        return
    from oncehouse.pipeline.transform.lookup_tables import read_lookup
    from oncehouse.pipeline.transform.user_function import check_function

    types = {
        name: parse_type(text) for name, text in (pipeline.source.decoded_fields | pipeline.columns).items()
    }
    for name, lookup in pipeline.shape.lookups.items():
        read_lookup(name, lookup, types[lookup.event_field])
    if pipeline.shape.function is not None:
        columns = pipeline.shape.columns
        given = {
            name: type_
            for name, type_ in types.items()
            if not (name in columns and columns[name].sql is None)
        }
        wanted = {name: type_ for name, type_ in types.items() if name not in given}
        check_function(_read_function(pipeline.shape.function), _schema(given), wanted)


def _schema(types: dict[str, ColumnType]) -> pa.Schema:
    return pa.schema([(name, arrow_type(type_)) for name, type_ in types.items()])


def _read_function(function: Function) -> FunctionPlan:
    try:
        with Path(function.file).open("rb") as file:
            raw = file.read(_MAX_SOURCE_BYTES + 1)
        source = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"shape.function: {function.file} cannot be read: {reason}; correct `file`"
        ) from error
    if len(raw) > _MAX_SOURCE_BYTES:
        raise ConfigurationError(
            f"shape.function: {function.file} is larger than {format_bytes(_MAX_SOURCE_BYTES)}"
        )
    return FunctionPlan(file=function.file, name=function.name, source=source)
