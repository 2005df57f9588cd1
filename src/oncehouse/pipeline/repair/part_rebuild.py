"""A part made again from the raw bytes of its events: the rows that it had, in their order.

With the fields of now, or with those that were known when it was registered. Its rows and live rows must be as many as
were registered; where they are transformed, other bytes are only taken while none of the old ones can be in the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from oncehouse.column_types.parser import parse_type
from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog.batches import find_batch, list_attempts
from oncehouse.ledger.catalog.learned_fields import list_fields
from oncehouse.ledger.models import BatchStatus, FileRef, Part
from oncehouse.pipeline.dedup.deduplicate import live_events
from oncehouse.pipeline.dedup.unique_id import unique_ids
from oncehouse.pipeline.ingest.part_files import PartFile, part_schema, route, schema_digest
from oncehouse.pipeline.ingest.plan_decoder import make_decoder
from oncehouse.pipeline.ingest.read_plan import table_plans
from oncehouse.pipeline.ingest.redecode import redecode_records
from oncehouse.pipeline.schema.evolution import current, with_learned
from oncehouse.pipeline.transform.plan_builder import plan_transform

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.stats.ledger_state import LedgerState, RegisteredKeyFile
    from oncehouse.ledger.storage.file_store import FileStore
    from oncehouse.pipeline.ingest.manifest import ReadPlan

_SETTLED = (BatchStatus.IN_CLICKHOUSE, BatchStatus.REPLACED)


@dataclass(frozen=True, kw_only=True)
class PartMaker:
    pipeline: Pipeline
    catalog: Catalog
    store: FileStore
    state: LedgerState
    plan: ReadPlan
    """How events are decoded now, without any transformation."""

    def make(self, part: Part, source: RegisteredKeyFile, path: str) -> FileRef:
        """A new file for the part; raises PermanentError where it would not be the same rows."""
        plan = self._part_plan(part)
        decoder = make_decoder(plan)
        made = PartFile(plan.tables[0], plan.columns)
        live = live_events(
            self.store,
            [duplicates.file for duplicates in self.state.duplicates.get(source.epoch, ())],
            ordinal=source.key_file.ordinal,
            events=source.key_file.events,
        )
        live_rows = events = 0
        for block, decoded in redecode_records(
            self.store, decoder, source.key_file.raw, may_skip=plan.transform is not None
        ):
            routes = route(plan.tables, decoded.rows)
            chosen = np.arange(decoded.rows.num_rows) if routes is None else np.flatnonzero(routes)
            numbers = (events + decoded.taken[chosen]).astype(np.uint32)
            rows = decoded.rows.take(pa.array(chosen))
            if rows.num_rows:
                records = block.take(pa.array(decoded.taken[chosen]))
                made.add(rows, numbers, unique_ids(plan.identity, rows, records, records.column("schema")))
            live_rows += int(np.count_nonzero(live[numbers]))
            events += block.num_rows
        if (made.rows, live_rows) != (part.rows, part.live_rows):
            raise PermanentError(
                f"part {part.part} made again has {made.rows} rows, {live_rows} of them live; it was registered with "
                f"{part.rows} and {part.live_rows}: the pipeline file makes other rows of its events now. Put back the "
                f"filter, function or route under which it was read. Nothing was changed."
            )
        new = self.store.put(path, made.write)
        if plan.transform is not None and new.checksum != part.file.checksum and self._may_be_sent(part):
            self.store.delete(new.path)
            raise PermanentError(
                f"part {part.part} is transformed, its bytes are not those that were written, and some of it may be in "
                "ClickHouse under its batch: look at `oncehouse batches show` and delete its rows, if any"
            )
        return new

    def _may_be_sent(self, part: Part) -> bool:
        """Asked of every part that the file is: one that was sent again has the same file under another name."""
        place = part.file.path, part.file.row
        return any(
            self._is_on_its_way(twin) for twin in self.state.parts if (twin.file.path, twin.file.row) == place
        )

    def _is_on_its_way(self, part: Part) -> bool:
        if part.batch_id is None or find_batch(self.catalog, part.batch_id).status in _SETTLED:
            return False
        known = list_attempts(self.catalog, part.batch_id)
        return any(attempt.may_have_sent for attempt in known)

    def _part_plan(self, part: Part) -> ReadPlan:
        """A plan whose columns are those of the part: with the fields of now, or with those of its time."""
        learned = [found for found in list_fields(self.catalog) if found.learned_at <= part.registered_at]
        for pipeline in (current(self.pipeline, self.catalog), with_learned(self.pipeline, learned)):
            fields = {name: parse_type(text) for name, text in pipeline.source.decoded_fields.items()}
            transform = plan_transform(pipeline, token=self.plan.token)
            plan = replace(
                self.plan, fields=fields, tables=table_plans(pipeline), transform=transform
            ).for_table(part.table)
            if plan.tables and schema_digest(part_schema(plan.tables[0], plan.columns)) == part.shape:
                return plan
        raise PermanentError(
            f"part {part.part} of {part.table} was made with other columns or types than the pipeline file has now. "
            "Put back those under which it was read, repair, and change them again. Nothing was changed."
        )
