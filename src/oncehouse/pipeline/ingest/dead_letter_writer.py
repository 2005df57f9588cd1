"""Dead letters of a read task, written to rolling files of bounded size.

A file never changes; whether it belongs to the ledger is decided by the catalog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.ledger.models import LetterKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.ingest.manifest import DeadLetterManifest, ReadPlan
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, epoch_path, write_dead_letters

_SAMPLE = ("topic", "partition", "offset", "reason", "detail")


class DeadLetterWriter:
    """Gathers letters of one kind, and writes them down whenever they fill a file."""

    def __init__(self, plan: ReadPlan, store: FileStore, attempt: str, kind: LetterKind) -> None:
        self._plan = plan
        self._store = store
        self._attempt = attempt
        self._kind = kind
        self._tables: list[pa.Table] = []
        self._reasons: Counter[str] = Counter()
        self._rows = 0
        self._bytes = 0
        self._written: list[DeadLetterManifest] = []

    def add(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        table = pa.Table.from_arrays(list(columns), schema=DEAD_LETTER_SCHEMA)
        self._tables.append(table)
        # What waits is counted by the schema it waits for.
        counted = pc.value_counts(table.column("schema" if self._kind is LetterKind.WAITING else "reason"))
        self._reasons.update(dict(zip(*(part.to_pylist() for part in counted.flatten()), strict=True)))
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
        table = pa.concat_tables(self._tables).unify_dictionaries()
        name = f"{self._attempt}-{len(self._written)}.{self._kind}.letters.parquet"
        path = epoch_path(self._plan.pipeline, self._plan.epoch, self._plan.token, name)
        file = self._store.put(path, lambda target: write_dead_letters(target, table))
        first = table.slice(0, 1).select(list(_SAMPLE)).to_pylist()[0]
        self._written.append(
            DeadLetterManifest(
                kind=self._kind,
                rows=table.num_rows,
                reasons=dict(self._reasons),
                sample="{topic}/{partition}/{offset}: {reason}: {detail}".format(**first),
                file=file,
            )
        )
        self._tables, self._reasons, self._rows, self._bytes = [], Counter(), 0, 0
