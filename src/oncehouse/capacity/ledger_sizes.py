"""How often epochs and inserts come, and what the ledger keeps of them for a window: files and catalog. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.capacity import constants
from oncehouse.capacity.index_layout import IndexLayout
from oncehouse.capacity.inputs import CapacityInputs
from oncehouse.ledger.catalog.snapshots import KEPT
from oncehouse.pipeline.dedup.index_compaction import AGE_SHARE, MAX_KEYS
from oncehouse.pipeline.ingest.epoch import SMALL_EPOCH_RECORDS
from oncehouse.pipeline.maintenance.file_packs import MOST_BYTES, MOST_EPOCHS, SMALL_BYTES
from oncehouse.pipeline.stages.supervisor import RETENTION_SECONDS

# Of a pack or of an epoch: keys, raw bytes and positions of duplicates besides the parts.
_FILES_WITHOUT_PARTS = 3


@dataclass(frozen=True, kw_only=True)
class Epochs:
    a_second: float
    rows: float
    """In the usual traffic."""
    parts: float
    """Of one of them, for each table."""
    packed: bool
    """Whether they are so small that retention packs them together."""


@dataclass(frozen=True, kw_only=True)
class Inserts:
    a_second: float
    """Into each table."""
    rows: float
    most_rows_a_second: float
    """That a table can be sent under `batch`."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    raw_bytes: float
    """The records as they came, packed where epochs are small."""
    part_bytes: float
    """Their rows for the tables, packed where epochs are small."""
    key_file_bytes: float
    duplicate_bytes: float
    index_bytes: float
    """With segments that are being merged, or have been and are still there."""
    catalog_bytes: float
    snapshot_bytes: float
    """Copies of the catalog next to the files."""
    files: float

    @property
    def file_bytes(self) -> float:
        """What lies in `ledger.files`."""
        return (
            self.raw_bytes
            + self.part_bytes
            + self.key_file_bytes
            + self.duplicate_bytes
            + self.index_bytes
            + self.snapshot_bytes
        )

    @property
    def total_bytes(self) -> float:
        return self.file_bytes + self.catalog_bytes


def plan_epochs(inputs: CapacityInputs, *, partitions: int) -> Epochs:
    rate = inputs.events_a_second
    usual_seconds = max(inputs.epoch.max_wait, constants.EPOCH_SECONDS)
    a_second = max(min(rate, 1 / usual_seconds), rate / inputs.epoch.max_rows)
    rows = rate / a_second
    small = rows <= SMALL_EPOCH_RECORDS
    parts = max(
        1 if small else partitions,
        rows / inputs.epoch.part_rows,
        rows * inputs.event_bytes / inputs.epoch.part_bytes,
    )
    raw_share, _ = _stored(inputs, packed=False)
    return Epochs(
        a_second=a_second,
        rows=rows,
        parts=parts,
        packed=rows * inputs.event_bytes * raw_share <= SMALL_BYTES,
    )


def plan_inserts(inputs: CapacityInputs, epochs: Epochs) -> Inserts:
    rate = inputs.new_a_second
    limits = inputs.batch
    most_rows = min(limits.max_rows, max(limits.max_bytes / inputs.event_bytes, 1.0))
    # Adaptive sizes wait for more rows where that is worth it; that they never do is the bound.
    due_seconds = 0.0 if limits.sizes == "adaptive" else min(limits.max_wait, limits.min_rows / rate)
    seconds = max(limits.min_interval, 1 / epochs.a_second, due_seconds)
    rows = min(rate * seconds, most_rows)
    return Inserts(
        a_second=rate / rows,
        rows=rows,
        most_rows_a_second=most_rows / max(limits.min_interval, 1e-3),
    )


def size_ledger(
    inputs: CapacityInputs, index: IndexLayout, epochs: Epochs, inserts: Inserts, *, partitions: int
) -> Disk:
    events = inputs.events_a_second * inputs.window_seconds
    raw_share, part_share = _stored(inputs, packed=epochs.packed)
    kept = events * (1 + AGE_SHARE) if epochs.packed else events
    catalog_bytes = _size_catalog(inputs, epochs, inserts, partitions)
    return Disk(
        raw_bytes=kept * inputs.event_bytes * raw_share,
        part_bytes=kept * inputs.event_bytes * part_share * inputs.tables,
        key_file_bytes=kept * constants.KEY_FILE_BYTES_AN_EVENT.value,
        duplicate_bytes=kept * inputs.duplicate_share * constants.DUPLICATE_BYTES.value,
        index_bytes=index.size_bytes + _size_replaced(inputs, index),
        catalog_bytes=catalog_bytes,
        snapshot_bytes=KEPT * catalog_bytes,
        files=index.segments + _count_files(inputs, epochs),
    )


def _stored(inputs: CapacityInputs, *, packed: bool) -> tuple[float, float]:
    """Bytes of raw files and of a table's parts for a byte of an event."""
    raw, part = constants.RAW_BYTES_A_BYTE.value, constants.PART_BYTES_A_BYTE.value
    scale = 1.0 if inputs.stored_share is None else inputs.stored_share / (raw + part)
    if packed:
        raw, part = constants.PACKED_RAW_BYTES_A_BYTE.value, constants.PACKED_PART_BYTES_A_BYTE.value
    return raw * scale, part * scale


def _size_catalog(inputs: CapacityInputs, epochs: Epochs, inserts: Inserts, partitions: int) -> float:
    an_epoch = (
        constants.CATALOG_BYTES_AN_EPOCH.value
        + constants.CATALOG_BYTES_A_RANGE.value * (min(partitions, epochs.rows) - 1)
        + constants.CATALOG_BYTES_A_PART.value * (epochs.parts * inputs.tables - 1)
    )
    batches = inserts.a_second * inputs.tables * constants.CATALOG_BYTES_A_BATCH.value
    return (epochs.a_second * an_epoch + batches) * inputs.window_seconds


def _size_replaced(inputs: CapacityInputs, index: IndexLayout) -> float:
    """Segments of a merge under way, and those that were merged since retention came by."""
    merging = 2 * min(MAX_KEYS, index.keys)
    merged = inputs.new_a_second * index.writes_a_key * min(RETENTION_SECONDS, inputs.window_seconds)
    return (merging + merged) * constants.SEGMENT_BYTES_A_KEY.value


def _count_files(inputs: CapacityInputs, epochs: Epochs) -> float:
    """Those of epochs; a pack has as many as a single epoch."""
    count = epochs.a_second * inputs.window_seconds
    if epochs.packed:
        raw_share, _ = _stored(inputs, packed=False)
        raw_bytes = count * epochs.rows * inputs.event_bytes * raw_share
        count = max(count / MOST_EPOCHS, raw_bytes / MOST_BYTES, min(count, 1 / AGE_SHARE))
        return count * (_FILES_WITHOUT_PARTS + inputs.tables)
    return count * (epochs.parts * (2 + inputs.tables) + 1)
