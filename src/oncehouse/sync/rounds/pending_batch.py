"""What was read for an engine that is not idempotent, kept until ClickHouse has it: at most one batch a sync.

It is written down under the sync's lease before its first byte leaves, and sent again with the same bytes under the
same token however often that takes, unless the table may have forgotten that (`batch_arrival.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlalchemy import Connection, Engine, delete, insert, select

from oncehouse.clickhouse.insert.repeatable_block import encode_block
from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.database import open_reader, transact
from oncehouse.sync.tables import ABSENT, batches

_COUNT = b"oncehouse.block_count"


@dataclass(frozen=True, kw_only=True)
class PendingBatch:
    batch_id: str
    block: pa.RecordBatch
    operations: tuple[str, ...]
    """Ids of the operations that it holds the rows of."""
    number: int = 0
    """Of its reading, once it was kept."""
    block_count: str | None = None
    """What the table had taken when it was kept; none where the table keeps no count."""
    age_seconds: float = 0.0
    """Since it was kept."""


def store_batch(connection: Connection, sync: str, number: int, batch: PendingBatch) -> None:
    """In the caller's transaction, which has checked the lease."""
    connection.execute(
        insert(batches).values(
            sync=sync,
            batch_id=batch.batch_id,
            reading=number,
            rows=batch.block.num_rows,
            operations=json.dumps(batch.operations),
            body=_encode(batch),
        )
    )


def find_pending_batch(engine: Engine, sync: str) -> PendingBatch | None:
    with open_reader(engine, f"Sync {sync}: looking for an unfinished batch", absent=ABSENT) as connection:
        row = connection.execute(
            select(
                batches.c.batch_id,
                batches.c.body,
                batches.c.operations,
                batches.c.reading,
                (DatabaseClock() - batches.c.created_at).label("age"),
            ).where(batches.c.sync == sync)
        ).one_or_none()
    if row is None:
        return None
    block = _decode(row.body)
    count = (block.schema.metadata or {}).get(_COUNT)
    return PendingBatch(
        batch_id=row.batch_id,
        block=block.replace_schema_metadata(None),
        operations=tuple(json.loads(row.operations)),
        number=row.reading,
        block_count=count.decode() if count else None,
        age_seconds=float(row.age),
    )


def delete_batch(engine: Engine, sync: str, batch_id: str) -> None:
    with transact(engine, f"Sync {sync}: forgetting a sent batch", absent=ABSENT) as connection:
        connection.execute(delete(batches).where(batches.c.sync == sync, batches.c.batch_id == batch_id))


def _encode(batch: PendingBatch) -> bytes:
    """With the count in the metadata of its schema, which an older oncehouse passes over."""
    count = {} if batch.block_count is None else {_COUNT: batch.block_count.encode()}
    body: bytes = encode_block(batch.block.replace_schema_metadata(count or None)).to_pybytes()
    return body


def _decode(body: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(body) as stream:
        blocks: Sequence[pa.RecordBatch] = list(stream)
    return blocks[0]
