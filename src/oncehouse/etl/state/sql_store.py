"""Offsets in an SQL catalog (SQLite or PostgreSQL): one row a topic, changed in one transaction under its lock.

For users who keep a ledger anyway, or whose ClickHouse has neither a Keeper nor EmbeddedRocksDB. Transform
views cannot read `last` and `next` from here; they take them as parameters.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, Text, insert, select, update
from sqlalchemy.engine import Row

from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_lease import new_offset
from oncehouse.etl.state.topic_state import decode_topic_state, encode_topic_state
from oncehouse.etl.state.transitions import Decide, OffsetSnapshot
from oncehouse.ledger.catalog.database import Catalog

_metadata = MetaData()
_offsets = Table(
    "oncehouse_etl_offsets",
    _metadata,
    Column("topic", String(255), primary_key=True),
    Column("last_ms", BigInteger, nullable=False),
    Column("last_id", String(20), nullable=False),  # up to 2^64 - 1, which no integer column of SQL holds
    Column("rows_total", BigInteger, nullable=False),
    Column("next_ms", BigInteger, nullable=False),
    Column("next_id", String(20), nullable=False),
    Column("run_ms", BigInteger, nullable=False),
    Column("consumer", String(255), nullable=False),
    Column("state", Text, nullable=False),
    Column("hostid", String(255), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("lane", String(20), nullable=False),
    Column("resume_ms", BigInteger, nullable=False),
    Column("resume_id", String(20), nullable=False),
    Column("book", Text, nullable=False),
)


class CatalogOffsets:
    view_table: str | None = None

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def prepare(self) -> None:
        self.catalog.change(_metadata.create_all)

    def read_all(self) -> OffsetSnapshot:
        with self.catalog.read() as connection:
            rows = connection.execute(select(_offsets)).all()
            return OffsetSnapshot(
                offsets={row.topic: _offset(row) for row in rows}, now_ms=self._now_ms(connection)
            )

    def change(self, topic: str, decide: Decide, seen: Offset | None = None) -> Offset:
        del seen  # the transaction reads the row under its lock anyway

        def run(connection: Connection) -> Offset:
            mine = _offsets.c.topic == topic
            row = connection.execute(select(_offsets).where(mine).with_for_update()).first()
            now_ms = self._now_ms(connection)
            known = _offset(row) if row else new_offset(topic)
            wanted = replace(decide(known, now_ms), run_ms=max(now_ms, known.run_ms + 1))
            if row is None:
                connection.execute(insert(_offsets).values(topic=topic, **_values(wanted)))
            else:
                connection.execute(update(_offsets).where(mine).values(**_values(wanted)))
            return wanted

        return self.catalog.change(run)

    def _now_ms(self, connection: Connection) -> int:
        return int(self.catalog.now_in(connection) * 1000)


def _offset(row: Row[tuple[object, ...]]) -> Offset:
    return Offset(
        topic=row.topic,
        last=Position(time_ms=row.last_ms, id=int(row.last_id)),
        next=Position(time_ms=row.next_ms, id=int(row.next_id)),
        rows=row.rows_total,
        run_ms=row.run_ms,
        consumer=row.consumer,
        state=row.state,
        hostid=row.hostid,
        generation=row.generation,
        job_kind=row.lane,
        resume=Position(time_ms=row.resume_ms, id=int(row.resume_id)),
        topic_state=decode_topic_state(row.book),
    )


def _values(row: Offset) -> dict[str, object]:
    return {
        "last_ms": row.last.time_ms,
        "last_id": str(row.last.id),
        "rows_total": row.rows,
        "next_ms": row.next.time_ms,
        "next_id": str(row.next.id),
        "run_ms": row.run_ms,
        "consumer": row.consumer,
        "state": row.state,
        "hostid": row.hostid,
        "generation": row.generation,
        "lane": row.job_kind,
        "resume_ms": row.resume.time_ms,
        "resume_id": str(row.resume.id),
        "book": encode_topic_state(row.topic_state),
    }
