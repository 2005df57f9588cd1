"""The fields that decide which rows a table merges: those behind its ORDER BY, version, sign and mark of deletion.

What a function gives is not followed: the fields that it used are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncehouse.clickhouse.table_info import TableFacts
    from oncehouse.config.pipeline import Pipeline


def with_tables(pipeline: Pipeline, facts: Mapping[str, TableFacts]) -> Pipeline:
    """The pipeline, knowing by which fields its tables merge rows."""
    found: dict[tuple[str, str], None] = {}
    for table in pipeline.tables:
        sent = table.columns or {name: name for name in pipeline.columns}
        merging = facts[table.name].merging_columns if table.name in facts else ()
        for column in merging:
            for field in _fields_behind(pipeline, sent.get(column)):
                found[table.name, field] = None
    return pipeline.with_merging_fields(found)


def _fields_behind(pipeline: Pipeline, name: str | None) -> Iterator[str]:
    """The decoded fields that the values of a field or computed column are made of."""
    open_names, seen = [name], set[str | None]()
    while open_names:
        name = open_names.pop()
        if name is None or name in seen:
            continue
        seen.add(name)
        if (expression := pipeline.expressions.columns.get(name)) is not None:
            for used in expression.inputs:
                lookup = pipeline.shape.lookups.get(used.lookup or "")
                open_names.append(used.column if lookup is None else lookup.field or lookup.key)
        elif name in pipeline.source.decoded_fields:
            yield name
