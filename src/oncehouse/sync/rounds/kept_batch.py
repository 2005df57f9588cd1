"""What was read for an engine that is not idempotent, kept until ClickHouse has it: at most one batch a sync.

It is written down under the sync's lease before its first byte leaves, and sent again with the same bytes under the
same token however often that takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlalchemy import Connection, Engine, delete, insert, select

from oncehouse.clickhouse.insert.insert_batch import encode_block
from oncehouse.messaging.database import reading, transact
from oncehouse.sync.tables import ABSENT, batches


@dataclass(frozen=True, kw_only=True)
class KeptBatch:
    batch_id: str
    block: pa.RecordBatch
    operations: tuple[str, ...]
    """Ids of the operations that it holds the rows of."""


def keep_batch(connection: Connection, sync: str, number: int, batch: KeptBatch) -> None:
    """In the caller's transaction, which has checked the lease."""
    connection.execute(
        insert(batches).values(
            sync=sync,
            batch_id=batch.batch_id,
            reading=number,
            rows=batch.block.num_rows,
            operations=json.dumps(batch.operations),
            body=encode_block(batch.block).to_pybytes(),
        )
    )


def find_batch(engine: Engine, sync: str) -> KeptBatch | None:
    with reading(engine, f"Sync {sync}: looking for an unfinished batch", absent=ABSENT) as connection:
        row = connection.execute(
            select(batches.c.batch_id, batches.c.body, batches.c.operations).where(batches.c.sync == sync)
        ).one_or_none()
    if row is None:
        return None
    return KeptBatch(
        batch_id=row.batch_id, block=_decode(row.body), operations=tuple(json.loads(row.operations))
    )


def forget_batch(engine: Engine, sync: str, batch_id: str) -> None:
    with transact(engine, f"Sync {sync}: forgetting a sent batch", absent=ABSENT) as connection:
        connection.execute(delete(batches).where(batches.c.sync == sync, batches.c.batch_id == batch_id))


def _decode(body: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(body) as stream:
        blocks: Sequence[pa.RecordBatch] = list(stream)
    return blocks[0]
