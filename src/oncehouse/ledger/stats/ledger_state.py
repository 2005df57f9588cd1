"""The whole ledger of a pipeline at one moment, for those who compare it with itself and with the world.

Read in one snapshot, so that a pipeline that goes on meanwhile cannot make the numbers disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from oncehouse.ledger.catalog.batches import list_batches, list_parts
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import (
    list_all_dead_letter_files,
    list_duplicates,
    list_epochs,
    list_key_files,
    list_ranges,
    read_positions,
)
from oncehouse.ledger.catalog.query_batches import list_settled
from oncehouse.ledger.catalog.schema import batches
from oncehouse.ledger.catalog.segments import list_segments
from oncehouse.ledger.models import (
    DeadLetterFile,
    DuplicateFile,
    EpochRow,
    KeyFile,
    LedgerBatch,
    OffsetRange,
    Part,
    Segment,
)

_IDS_A_QUERY = 500


@dataclass(frozen=True, kw_only=True)
class RegisteredKeyFile:
    epoch: int
    registered_at: float
    key_file: KeyFile


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    now: float
    epochs: tuple[EpochRow, ...]
    """Oldest first."""
    ranges: tuple[tuple[int, OffsetRange], ...]
    """(epoch, range), by topic, partition and offset."""
    positions: dict[tuple[str, int], int]
    queries: dict[str, tuple[tuple[int, int, int], ...]]
    """By query: (first batch, last batch, epoch), in order."""
    key_files: tuple[RegisteredKeyFile, ...]
    parts: tuple[Part, ...]
    duplicates: dict[int, tuple[DuplicateFile, ...]]
    """By epoch."""
    dead_letter_files: tuple[DeadLetterFile, ...]
    """Of both kinds, those tried again included."""
    segments: tuple[Segment, ...]
    batches: tuple[LedgerBatch, ...]


def read_state(catalog: Catalog) -> LedgerState:
    with catalog.snapshot() as view:
        return LedgerState(
            now=view.now(),
            epochs=tuple(reversed(list_epochs(view))),
            ranges=list_ranges(view),
            positions=read_positions(view),
            queries=list_settled(view),
            key_files=tuple(
                RegisteredKeyFile(epoch=epoch, registered_at=registered_at, key_file=key_file)
                for epoch, registered_at, key_file in list_key_files(view)
            ),
            parts=list_parts(view),
            duplicates=list_duplicates(view),
            dead_letter_files=list_all_dead_letter_files(view),
            segments=list_segments(view),
            batches=list_batches(view),
        )


def find_known_batches(catalog: Catalog, batch_ids: Iterable[str]) -> set[str]:
    """Those of the ids that any pipeline of this catalog has given to a batch, as of now."""
    known: set[str] = set()
    ordered = sorted(batch_ids)
    with catalog.read() as connection:
        for start in range(0, len(ordered), _IDS_A_QUERY):
            some = ordered[start : start + _IDS_A_QUERY]
            rows = connection.execute(select(batches.c.batch_id).where(batches.c.batch_id.in_(some))).all()
            known.update(row.batch_id for row in rows)
    return known
