"""Dead letters of a read task, written to rolling files of bounded size.

A file never changes; whether it belongs to the ledger is decided by the catalog.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.ledger.models import DeadLetterKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.ingest.manifest import DeadLetterManifest, ReadPlan
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, epoch_path, write_dead_letters

MOST_SCHEMAS = 1000
"""How many unknown schemas the records of one task may wait for. Manifests and the catalog name all of them."""
# So that the first file of a task does not take all of them: each further one may add a fiftieth.
_FILES = 50

_SAMPLE = ("topic", "partition", "offset", "reason", "detail")


class DeadLetterWriter:
    """Gathers letters of one kind, and writes them down whenever they fill a file."""

    _counted_by = "reason"

    def __init__(self, plan: ReadPlan, store: FileStore, attempt: str, kind: DeadLetterKind) -> None:
        self._plan = plan
        self._store = store
        self._attempt = attempt
        self._kind = kind
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0
        self._written: list[DeadLetterManifest] = []

    def add(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        table = pa.Table.from_arrays(list(columns), schema=DEAD_LETTER_SCHEMA)
        self._tables.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= self._plan.part_rows or self._bytes >= self._plan.part_bytes:
            self._end_file()

    def finish(self) -> tuple[DeadLetterManifest, ...]:
        self._end_file()
        return tuple(self._written)

    def _end_file(self) -> None:
        if not self._rows:
            return
        table = self._limit(pa.concat_tables(self._tables).unify_dictionaries())
        self._tables, self._rows, self._bytes = [], 0, 0
        if not table.num_rows:
            return
        name = f"{self._attempt}-{len(self._written)}.{self._kind}.letters.parquet"
        path = epoch_path(self._plan.pipeline, self._plan.epoch, self._plan.token, name)
        file = self._store.put(path, lambda target: write_dead_letters(target, table))
        first = table.slice(0, 1).select(list(_SAMPLE)).to_pylist()[0]
        self._written.append(
            DeadLetterManifest(
                kind=self._kind,
                rows=table.num_rows,
                reasons=_count(table.column(self._counted_by)),
                sample="{topic}/{partition}/{offset}: {reason}: {detail}".format(**first),
                file=file,
            )
        )

    def _limit(self, table: pa.Table) -> pa.Table:
        return table


class WaitingWriter(DeadLetterWriter):
    """Records that wait, counted by the schema that they wait for.

    They can name as many schemas as there are records. Those of the most frequent ones wait, the others become dead
    letters: a schema that producers use and the pipeline does not know yet is in more than one record.
    """

    _counted_by = "schema"

    def __init__(self, plan: ReadPlan, store: FileStore, attempt: str, *, overflow: DeadLetterWriter) -> None:
        super().__init__(plan, store, attempt, DeadLetterKind.WAITING)
        self._overflow = overflow
        self._kept: set[str] = set()

    def _limit(self, table: pa.Table) -> pa.Table:
        counted = _count(table.column("schema"))
        more = sorted(counted.keys() - self._kept, key=lambda name: (-counted[name], name))
        most = max(MOST_SCHEMAS - len(self._kept), MOST_SCHEMAS // _FILES)
        self._kept.update(more[:most])
        if len(more) <= most:
            return table
        waits = pc.is_in(table.column("schema"), value_set=pa.array(sorted(self._kept)))
        dead = table.filter(pc.invert(waits))
        why = f", and neither are {MOST_SCHEMAS} others that more records wait for"
        self._overflow.add(
            [*dead.columns[:-1], pc.binary_join_element_wise(dead.column("detail"), why, "")],
        )
        return table.filter(waits)


def _count(texts: pa.ChunkedArray) -> dict[str, int]:
    counted = pc.value_counts(texts)
    return dict(zip(*(part.to_pylist() for part in counted.flatten()), strict=True))
