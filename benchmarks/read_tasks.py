"""A read task as the driver would plan it, and blocks of the benchmarks' events for it; no server is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demo_traffic import FIELDS, IDENTITY, make_messages, plan_traffic
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.dedup.identity_rule import Rule
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.ingest.manifest import ReadPlan, TableReadPlan

BLOCK_ROWS = 50_000


def make_read_plan(folder: Path) -> ReadPlan:
    return ReadPlan(
        pipeline="bench",
        epoch=1,
        token=1,
        topics=("bench",),
        format=JsonFormat(),
        fields={name: parse_type(text) for name, text in FIELDS.items()},
        identity=Rule(fields=tuple((name,) for name in IDENTITY)),
        tables=(
            TableReadPlan(
                name="bench", columns=tuple((name, name) for name in FIELDS), id_column="_unique_id"
            ),
        ),
        files_root=str(folder),
        max_message_bytes=1 << 20,
        max_depth=64,
        part_rows=500_000,
        part_bytes=128 << 20,
        whole=False,
    )


def make_blocks(
    events: int, added_bytes: int = 0, *, block_rows: int = BLOCK_ROWS
) -> Iterator[pa.RecordBatch]:
    """The events of the benchmarks, each with so many random letters more."""
    serials = plan_traffic(events, resent_share=0.0).first
    letters = np.random.default_rng(3).integers(97, 123, (block_rows, added_bytes), dtype=np.uint8)
    for start in range(0, len(serials), block_rows):
        messages: list[Any] = list(make_messages(serials[start : start + block_rows]))
        if added_bytes:
            messages = [
                message[:-2] + letters[at].tobytes() + message[-2:] for at, message in enumerate(messages)
            ]
        yield pa.record_batch(
            {
                "source": pa.array(np.zeros(len(messages)), pa.int32()),
                "offset": pa.array(np.arange(start, start + len(messages)), pa.int64()),
                "timestamp": pa.array(
                    np.full(len(messages), 1_767_225_600_000_000), pa.timestamp("us", tz="UTC")
                ),
                "key": pa.nulls(len(messages), pa.binary()),
                "value": pa.array(messages, pa.binary()),
            }
        )
