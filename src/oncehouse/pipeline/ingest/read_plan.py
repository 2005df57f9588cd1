"""What a read task needs from the driver: fields, format, schemas, tables and limits, put together for one epoch.

Fields and schemas are those that the ledger knows at this moment. Nothing is read here, and nothing decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oncehouse.column_types.parser import parse_type
from oncehouse.ledger.catalog import query_batches
from oncehouse.ledger.catalog.known_schemas import list_schemas
from oncehouse.pipeline.dedup.identity_rule import rule_of
from oncehouse.pipeline.formats.factory import format_of
from oncehouse.pipeline.ingest.manifest import ReadPlan, TableReadPlan
from oncehouse.pipeline.ingest.part_files import topic_of
from oncehouse.pipeline.schema.evolution import current
from oncehouse.pipeline.schema.required_fields import (
    identity_fields,
    is_optional,
    refused_versions,
    required_fields,
)
from oncehouse.pipeline.transform.plan import route_column
from oncehouse.pipeline.transform.plan_builder import plan_transform

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline, Table
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import Schema


def table_plans(pipeline: Pipeline) -> tuple[TableReadPlan, ...]:
    plans = []
    for at, table in enumerate(pipeline.tables):
        columns = table.columns or {field: field for field in pipeline.columns}
        route = _route(table, at)
        plans.append(
            TableReadPlan(
                name=table.name,
                columns=tuple(columns.items()),
                id_column=table.id_column,
                route_field=route[0],
                route_values=route[1],
            )
        )
    return tuple(plans)


def _route(table: Table, at: int) -> tuple[str | None, tuple[str | int | bool, ...]]:
    """The column that decides about the table and the values that it takes; none when it takes all."""
    if table.route is None:
        return None, ()
    if table.route.where is not None:
        return route_column(at), (True,)
    return table.route.field, table.route.values or ()


def read_plan(pipeline: Pipeline, catalog: Catalog, *, epoch: int, token: int, whole: bool) -> ReadPlan:
    plan = build_read_plan(
        current(pipeline, catalog), list_schemas(catalog), epoch=epoch, token=token, whole=whole
    )
    return replace(
        plan,
        topics=(*plan.topics, *(topic_of(name) for name in query_batches.list_queries(catalog))),
    )


def build_read_plan(
    pipeline: Pipeline, schemas: tuple[Schema, ...], *, epoch: int, token: int, whole: bool
) -> ReadPlan:
    rule = rule_of(pipeline, schemas)
    smallest_batch = min(pipeline.limits(table.name).max_rows for table in pipeline.tables)
    return ReadPlan(
        pipeline=pipeline.pipeline,
        epoch=epoch,
        token=token,
        topics=pipeline.source.topics,
        format=format_of(pipeline.source, schemas),
        schemas=schemas,
        fields={name: parse_type(text) for name, text in pipeline.source.decoded_fields.items()},
        identity=rule,
        tables=table_plans(pipeline),
        files_root=pipeline.ledger.files,
        max_message_bytes=pipeline.source.max_message_bytes,
        max_depth=pipeline.source.max_depth,
        part_rows=min(pipeline.epoch.part_rows, smallest_batch),
        part_bytes=pipeline.epoch.part_bytes,
        whole=whole,
        refused=refused_versions(pipeline, schemas, rule),
        needs_value=not is_optional(pipeline, rule),
        must_be_set=identity_fields(pipeline, rule),
        needed_columns={one.steps[0]: one.reason for one in reversed(required_fields(pipeline, rule))},
    )


def plan_epoch_read(pipeline: Pipeline, catalog: Catalog, *, epoch: int, token: int, whole: bool) -> ReadPlan:
    """A plan that makes parts; `read_plan` alone gives events as they were decoded, which is all that ids need."""
    plan = read_plan(pipeline, catalog, epoch=epoch, token=token, whole=whole)
    return replace(plan, transform=plan_transform(current(pipeline, catalog), token=token))
