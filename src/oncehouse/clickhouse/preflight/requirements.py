"""What a pipeline asks of one of its tables, and of the user that loads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.insert.dedup_window import WindowNeeds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncehouse.config.pipeline import Pipeline, Table

_SHORTEST_LOAD_SECONDS = 0.1
"""A batch of a pipeline is sent by a task, and takes that long whatever `batch.min_interval` allows."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    table: str
    columns: Mapping[str, str]
    """Column of the table -> ClickHouse type that is sent."""
    batch_column: str
    id_column: str | None
    window: WindowNeeds
    adds_columns: bool = False
    """New fields get columns of their own, which the user must be allowed to add."""
    stamps_pos: bool = False
    """The table itself sets `pos` to when it takes a row in, and `declare` relies on that."""
    refuses_excess_rights: bool = False
    """A user that may do more than load and look is an error, not a warning."""


def needs_of(pipeline: Pipeline, table: Table) -> Needs:
    fields = pipeline.columns
    columns = table.columns if table.columns is not None else {field: field for field in fields}
    limits = pipeline.limits(table.name)
    return Needs(
        table=table.name,
        columns={column: fields[field] for column, field in columns.items()},
        batch_column=table.batch_column,
        id_column=table.id_column,
        window=WindowNeeds(
            min_interval_seconds=max(limits.min_interval, _SHORTEST_LOAD_SECONDS),
            retry_horizon_seconds=pipeline.clickhouse.insert_timeout + pipeline.retry.longest,
        ),
        adds_columns=pipeline.source.new_fields == "add" and table.columns is None,
        stamps_pos=table.declare is not None and table.declare.pos == "inserted",
        refuses_excess_rights=pipeline.clickhouse.excess_rights == "refuse",
    )
