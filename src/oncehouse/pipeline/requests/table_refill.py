"""Filling a table again from the ledger: no event is new, its rows are only sent once more.

Parts that the table has already are given to new batches when their rows have gone from ClickHouse; for events
the table never had, parts are decoded from the raw bytes. Batches whose rows are all there are left alone, and
a batch of which only some rows are there is refused, so that nothing can be doubled.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog import batches, epochs, registration
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import (
    Counts,
    EpochKind,
    FileRef,
    LedgerBatch,
    Part,
    Registration,
)
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.deduplicate import live_events
from oncehouse.pipeline.dedup.identity_rule import Rule
from oncehouse.pipeline.dedup.unique_id import unique_ids
from oncehouse.pipeline.formats.base import Decoded, Places
from oncehouse.pipeline.ingest.manifest import PartManifest, ReadPlan
from oncehouse.pipeline.ingest.part_files import PartFile, epoch_path, route
from oncehouse.pipeline.ingest.plan_decoder import make_decoder
from oncehouse.pipeline.ingest.read_plan import plan_epoch_read
from oncehouse.pipeline.ingest.redecode import describe_place, redecode_records
from oncehouse.pipeline.schema.identity_guard import identity_of
from oncehouse.pipeline.schema.required_fields import refused_versions, reject_versions
from oncehouse.pipeline.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class RefillPlan:
    """One key file whose events a table never had."""

    read: ReadPlan
    key_file: str
    ordinal: int
    events: int
    raw: FileRef
    duplicate_files: tuple[FileRef, ...]


def gone_batches(
    candidates: Sequence[LedgerBatch], rows_by_batch: Mapping[str, int]
) -> tuple[LedgerBatch, ...]:
    """Loaded or parked batches of which ClickHouse has no row; raises when it has only some."""
    gone = []
    for batch in candidates:
        found = rows_by_batch.get(batch.batch_id, 0)
        if found == 0:
            gone.append(batch)
        elif found != batch.rows:
            raise PermanentError(
                f"{batch.table} holds {found} of the {batch.rows} rows of batch {batch.batch_id}. Filling the "
                "table again would double them: delete that batch's rows (or truncate the table) first."
            )
    return tuple(gone)


def refill(
    spark: SparkSession,
    pipeline: Pipeline,
    catalog: Catalog,
    token: int,
    *,
    table: str,
    gone: Sequence[LedgerBatch],
    request: int,
) -> int:
    """Register parts that bring into the table what it lacks; returns their rows.

    `gone` are batches as they were before their rows were looked for: one that was retried since is refused.
    """
    gone_ids = {batch.batch_id for batch in gone}
    epoch = epochs.next_epoch(catalog)
    started_at = catalog.now()
    present = batches.list_parts(catalog, table=table)
    resent = [
        replace(part, part=f"{epoch:010d}-again-{number}", epoch=epoch, batch_id=None)
        for number, part in enumerate(part for part in present if part.batch_id in gone_ids)
    ]
    made = _decode_missing(spark, pipeline, catalog, epoch, token, table, {part.key_file for part in present})
    registration.register(
        catalog,
        token,
        Registration(
            epoch=epoch,
            kind=EpochKind.REFILL,
            started_at=started_at,
            counts=Counts(),
            topic_ids={},
            parts=(*resent, *made),
            replaced_batches=tuple(gone),
            request=request,
            identity=identity_of(pipeline, catalog),
        ),
    )
    return sum(part.live_rows for part in (*resent, *made))


def _decode_missing(
    spark: SparkSession,
    pipeline: Pipeline,
    catalog: Catalog,
    epoch: int,
    token: int,
    table: str,
    known: set[str],
) -> list[Part]:
    plan = plan_epoch_read(pipeline, catalog, epoch=epoch, token=token, whole=False).for_table(table)
    # What was settled has its id; that the table would merge events without its key is another matter.
    own = [(name, field) for name, field in pipeline.merging_fields if name == table]
    lacking = refused_versions(pipeline.with_merging_fields(own), plan.schemas, Rule())
    plan = replace(plan, refused=lacking)
    duplicates = epochs.list_duplicate_files(catalog)
    plans = [
        RefillPlan(
            read=plan,
            key_file=key_file.key_file,
            ordinal=key_file.ordinal,
            events=key_file.events,
            raw=key_file.raw,
            duplicate_files=duplicates.get(source_epoch, ()),
        )
        for source_epoch, _, key_file in epochs.list_key_files(catalog)
        if key_file.key_file not in known
    ]
    found: list[tuple[int, PartManifest] | None] = run_tasks(spark, refill_task, plans) if plans else []
    return [
        Part(
            part=f"{epoch:010d}-{token}-refill-{number}",
            epoch=epoch,
            table=table,
            key_file=source.key_file,
            ordinal=source.ordinal,
            rows=made[1].rows,
            live_rows=made[0],
            size_bytes=made[1].size_bytes * made[0] // max(made[1].rows, 1),
            shape=made[1].shape,
            file=made[1].file,
        )
        for number, (source, made) in enumerate(zip(plans, found, strict=True))
        if made is not None and made[0]
    ]


def _require_key(plan: RefillPlan, block: pa.RecordBatch, decoded: Decoded, chosen: Places) -> None:
    """Refuse events that lack the field by which the table merges rows."""
    taken = set(decoded.taken[chosen].tolist()) if plan.read.refused else set()
    for rejection in reject_versions(decoded, plan.read.refused).rejected:
        if rejection.index in taken:
            raise PermanentError(
                f"Pipeline {plan.read.pipeline}: {plan.read.tables[0].name} was not filled: {rejection.detail} "
                f"({describe_place(block, rejection.index)}), and would make one row of different events. Say in the "
                "pipeline file how the field is found (source.protobuf.numbers, source.avro.aliases), or that it is in "
                "source.optional_fields; or fill a table that merges no rows."
            )


def refill_task(plan: RefillPlan) -> tuple[int, PartManifest] | None:
    """(live rows, part) of one key file for the table, or nothing where the table takes none of its events."""
    store = FileStore(plan.read.files_root)
    decoder = make_decoder(plan.read)
    live = live_events(store, plan.duplicate_files, ordinal=plan.ordinal, events=plan.events)
    part = PartFile(plan.read.tables[0], plan.read.columns)
    live_rows = events = 0
    for block, decoded in redecode_records(
        store, decoder, plan.raw, may_skip=plan.read.transform is not None
    ):
        routes = route(plan.read.tables, decoded.rows)
        chosen = np.arange(decoded.rows.num_rows) if routes is None else np.flatnonzero(routes)
        numbers = (events + decoded.taken[chosen]).astype(np.uint32)
        rows = decoded.rows.take(pa.array(chosen))
        _require_key(plan, block, decoded, chosen)
        if rows.num_rows:
            records = block.take(pa.array(decoded.taken[chosen]))
            ids = unique_ids(plan.read.identity, rows, records, records.column("schema"))
            part.add(rows, numbers, ids)
        live_rows += int(np.count_nonzero(live[numbers]))
        events += block.num_rows
    if not live_rows:
        return None
    path = epoch_path(
        plan.read.pipeline,
        plan.read.epoch,
        plan.read.token,
        f"f{uuid.uuid4().hex[:12]}.part.arrow",
    )
    file = store.put(path, part.write)
    return live_rows, part.manifest(0, file)
