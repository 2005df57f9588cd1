"""What a read task has in memory is bounded by its parts and blocks: not by its records' number, nor by their size."""

from __future__ import annotations

import multiprocessing

import pyarrow as pa

from oncehouse.capacity import constants
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.ingest.manifest import TableReadPlan
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.spark.arrow_batches import BLOCK_BYTES
from plan_examples import make_read_plan
from process_memory import peak_bytes

MEGABYTE = 1_000_000
PART_BYTES = 16 << 20


def blocks(events: int, event_bytes: int):
    """As Spark gives them: no more bytes at once than it was told."""
    rows = BLOCK_BYTES // event_bytes
    for start in range(0, events, rows):
        count = min(rows, events - start)
        text = "x" * (event_bytes - 100)
        values = [b'{"id": %d, "name": "%s"}' % (start + at, text.encode()) for at in range(count)]
        yield pa.record_batch(
            {
                "source": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(start, start + count), pa.int64()),
                "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
                "key": pa.nulls(count, pa.binary()),
                "value": pa.array(values, pa.binary()),
            }
        )


def read_and_measure(folder: str, events: int, event_bytes: int) -> tuple[int, int]:
    """(parts, bytes by which this process grew at most)"""
    plan = make_read_plan(
        folder,
        fields={"id": parse_type("UInt64"), "name": parse_type("String")},
        tables=(TableReadPlan(name="t", columns=(("id", "id"), ("name", "name")), id_column=None),),
        max_message_bytes=2 * MEGABYTE,
        part_bytes=PART_BYTES,
        part_rows=500_000,
    )
    read_records(plan, "warm", blocks(3, 1000))
    before = peak_bytes("self")
    manifest = read_records(plan, "measured", blocks(events, event_bytes))
    return len(manifest.chunks), peak_bytes("self") - before


def test_many_parts_of_events_of_a_megabyte_take_the_memory_of_one(tmp_path):
    bound = PART_BYTES * constants.READ_MEMORY_BYTES_A_BYTE.value + (
        BLOCK_BYTES * constants.READ_MEMORY_BYTES_A_BYTE_OF_A_BLOCK.value
    )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        parts, grown = pool.apply(read_and_measure, (str(tmp_path), 100, MEGABYTE))
    assert parts == 4
    assert 0 < grown <= bound, f"{grown / 1e6:.0f} MB, {bound / 1e6:.0f} MB are stated"
