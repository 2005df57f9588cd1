"""The outbox table as a relay reads and writes it, in SQL that every supported database has.

SQLite uses this alone; PostgreSQL has faster statements to claim and settle (`postgres_store`). Every write locks the
leases of its buckets first and leaves alone the buckets that another relay has taken over, so a relay that was
suspended beyond its lease changes nothing when it resumes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    or_,
    select,
    update,
)

from oncehouse.common.database import DatabaseClock, begin
from oncehouse.messaging.bucket_leases import lock_held
from oncehouse.messaging.outbox.relay.types import ClaimedRow, RefusedRow, SendResult, Tokens
from oncehouse.messaging.outbox.tables import OutboxTables

ERROR_LENGTH = 500


class SqlStore:
    """`keep` leaves sent rows in the table, marked; otherwise they are deleted."""

    wakes = False

    def __init__(self, engine: Engine, tables: OutboxTables, *, keep: bool = False) -> None:
        self._engine = engine
        self._tables = tables
        self._keep = keep
        self._whose = f"Outbox {tables.name}"
        outbox = tables.outbox
        self._waiting = and_(outbox.c.sent_at.is_(None), outbox.c.parked_at.is_(None))

    def claim(self, tokens: Tokens, *, rows: int, size_bytes: int) -> list[ClaimedRow]:
        outbox = self._tables.outbox
        before = func.sum(func.length(outbox.c.value)).over(
            partition_by=outbox.c.bucket, order_by=outbox.c.seq, rows=(None, -1)
        )
        place = func.row_number().over(partition_by=outbox.c.bucket, order_by=outbox.c.seq)
        with begin(self._engine, whose=self._whose) as connection:
            held = lock_held(connection, self._tables.leases, self._tables.name, tokens)
            numbered = (
                select(*outbox.c, before.label("bytes_before"), place.label("place"))
                .where(outbox.c.bucket.in_(sorted(held)), self._waiting)
                .subquery()
            )
            few = func.coalesce(numbered.c.bytes_before, -1) < size_bytes
            found = connection.execute(
                select(numbered).where(numbered.c.place <= rows, few).order_by(numbered.c.seq)
            ).all()
            parked = self._read_parked(connection, held)
        return [
            ClaimedRow(
                seq=row.seq,
                bucket=row.bucket,
                message_id=str(row.id),
                topic=row.topic,
                key=row.key,
                value=row.value,
                headers=row.headers,
                behind=parked.get((row.topic, row.key)) if row.key is not None else None,
            )
            for row in found
        ]

    def _read_parked(self, connection: Connection, buckets: set[int]) -> dict[tuple[str, bytes], str]:
        """The first parked message of each topic and key."""
        outbox = self._tables.outbox
        rows = connection.execute(
            select(outbox.c.topic, outbox.c.key, outbox.c.id)
            .where(
                outbox.c.parked_at.is_not(None),
                outbox.c.behind.is_(None),
                outbox.c.bucket.in_(sorted(buckets)),
            )
            .order_by(outbox.c.seq.desc())
        )
        return {(row.topic, row.key): str(row.id) for row in rows}

    def settle(self, tokens: Tokens, sent: SendResult) -> int:
        if not sent.acknowledged:
            return 0
        outbox = self._tables.outbox
        with begin(self._engine, whose=self._whose) as connection:
            held = lock_held(connection, self._tables.leases, self._tables.name, tokens)
            ours = (outbox.c.seq == bindparam("a_seq"), _one_of(outbox.c.bucket, held))
            if not self._keep:
                return connection.execute(
                    delete(outbox).where(*ours), [{"a_seq": seq} for seq in sent.acknowledged]
                ).rowcount
            marked = update(outbox).where(*ours)
            marked = marked.values(
                sent_at=DatabaseClock(),
                sent_partition=bindparam("a_partition"),
                sent_offset=bindparam("an_offset"),
            )
            rows = [
                {"a_seq": place.seq, "a_partition": place.partition, "an_offset": place.offset}
                for place in sent.positions
            ]
            return connection.execute(marked, rows).rowcount

    def park(self, tokens: Tokens, refused: Sequence[RefusedRow]) -> int:
        if not refused:
            return 0
        outbox = self._tables.outbox
        with begin(self._engine, whose=self._whose) as connection:
            held = lock_held(connection, self._tables.leases, self._tables.name, tokens)
            parked = (
                update(outbox)
                .where(outbox.c.seq == bindparam("a_seq"), _one_of(outbox.c.bucket, held), self._waiting)
                .values(
                    parked_at=DatabaseClock(),
                    attempts=outbox.c.attempts + 1,
                    last_error=bindparam("an_error"),
                )
            )
            rows = [{"a_seq": row.seq, "an_error": error[:ERROR_LENGTH]} for row, error in refused]
            return connection.execute(parked, rows).rowcount

    def park_behind(self, tokens: Tokens, rows: Sequence[ClaimedRow]) -> int:
        by_parked: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            if row.behind is not None:
                by_parked[row.behind].append(row.seq)
        if not by_parked:
            return 0
        outbox = self._tables.outbox
        first = outbox.alias("first")
        count = 0
        with begin(self._engine, whose=self._whose) as connection:
            held = lock_held(connection, self._tables.leases, self._tables.name, tokens)
            for parked, seqs in by_parked.items():
                # Checked again under the lock: the key may have been released since the rows were claimed.
                still = exists().where(first.c.id == UUID(parked), first.c.parked_at.is_not(None))
                count += connection.execute(
                    update(outbox)
                    .where(outbox.c.seq.in_(seqs), outbox.c.bucket.in_(sorted(held)), self._waiting, still)
                    .values(parked_at=DatabaseClock(), behind=UUID(parked))
                ).rowcount
        return count

    def note_failure(self, tokens: Tokens, seqs: Sequence[int], error: str) -> None:
        outbox = self._tables.outbox
        with begin(self._engine, whose=self._whose) as connection:
            held = lock_held(connection, self._tables.leases, self._tables.name, tokens)
            connection.execute(
                update(outbox)
                .where(outbox.c.seq.in_(seqs), outbox.c.bucket.in_(sorted(held)))
                .values(attempts=outbox.c.attempts + 1, last_error=error[:ERROR_LENGTH])
            )

    def find_waiting(self, buckets: Sequence[int]) -> set[int]:
        outbox = self._tables.outbox
        with begin(self._engine, whose=self._whose) as connection:
            found = connection.execute(
                select(outbox.c.bucket).where(outbox.c.bucket.in_(buckets), self._waiting).distinct()
            )
            return set(found.scalars())

    def clean(self, *, keep_seconds: float, rows: int) -> int:
        outbox = self._tables.outbox
        old = (
            select(outbox.c.seq)
            .where(outbox.c.sent_at < DatabaseClock() - keep_seconds)
            .order_by(outbox.c.sent_at)
            .limit(rows)
            # Two relays that clean up at once delete different rows instead of waiting for each other.
            .with_for_update(skip_locked=True)
        )
        with begin(self._engine, whose=self._whose) as connection:
            return connection.execute(delete(outbox).where(outbox.c.seq.in_(old))).rowcount

    def wait_for_wake(self, timeout_seconds: float) -> bool:
        raise NotImplementedError(
            f"{self._engine.dialect.name} has no notifications to wait for ({timeout_seconds} s)"
        )

    def close(self) -> None:
        self._engine.dispose()


def _one_of(column: Column[int], values: set[int]) -> ColumnElement[bool]:
    """As `in_`, for statements that run over many rows of parameters, where SQLAlchemy has no `in_`."""
    return or_(false(), *(column == value for value in sorted(values)))
