"""A catalog that is older than the tables, brought to where it may go on: one transaction, or nothing.

What ClickHouse got after the catalog's moment stands there under batches that the catalog does not know. Their ids
enter the key index, so that the same events read again are duplicates; their rows enter the sums of batches that are
known in sum only. Parts and batches whose rows have arrived are settled. Fencing tokens jump, so that no process of the
lost time can write any more.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass, field

from sqlalchemy import Connection, insert, select, update

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog.batches import part_of
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.rollup import add_batches
from oncehouse.ledger.catalog.schema import batches, leases, parts, pipelines, requests
from oncehouse.ledger.catalog.segments import insert_segments
from oncehouse.ledger.catalog.snapshots import copy_rows
from oncehouse.ledger.models import BatchStatus, LedgerIdentity, Part, Segment, Stage

# More than any process makes between two marks.
_WRITES_UNKNOWN = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """What a catalog learns from the tables."""

    segments: tuple[Segment, ...] = ()
    """The ids of rows whose batches it does not know."""
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By table: (batches, rows) that it knew neither by name nor in sum."""
    arrived_batches: tuple[str, ...] = ()
    """Those it took for waiting, whose rows are all there."""
    arrived_parts: tuple[str, ...] = ()
    """Those it took for open, whose rows are all there under batches that it does not know."""
    resent_batches: tuple[str, ...] = ()
    """Those it took for waiting, parked or loaded, whose rows are all there under batches that it does not know."""
    after_token: int = 0
    """The highest fencing token that is known to have been given out in the lost time."""
    after_writes: int = 0
    """The highest number of a write that is known to have been confirmed in the lost time."""


def adopt(catalog: Catalog, token: int, adoption: Adoption) -> None:
    catalog.write(Stage.INGEST, token, lambda connection: _adopt(connection, catalog, adoption))


def restore(catalog: Catalog, snapshot: Catalog, adoption: Adoption, identity: LedgerIdentity | None) -> None:
    """Enter the pipeline's rows out of a snapshot together with what the tables know beyond it.

    `identity`: the rule of a pipeline that begins again, where the snapshot is empty. A commit whose answer was lost is
    looked up by the name that it leaves in the lease.
    """
    name = str(uuid.uuid4())

    def run(connection: Connection) -> None:
        if catalog.was_committed(connection, Stage.INGEST, name):
            return
        if catalog.identity_in(connection) is not None:
            raise PermanentError(
                f"Pipeline {catalog.pipeline} is in the catalog already; nothing was restored over it."
            )
        with snapshot.read() as source:
            copy_rows(source, connection, catalog.pipeline)
        if identity is not None:
            connection.execute(
                insert(pipelines).values(
                    pipeline=catalog.pipeline,
                    fingerprint=identity.fingerprint,
                    buckets=identity.buckets,
                    created_at=catalog.clock,
                )
            )
        _adopt(connection, catalog, adoption)
        catalog.name_write(connection, Stage.INGEST, name)

    catalog.change(run)


def _adopt(connection: Connection, catalog: Catalog, adoption: Adoption) -> None:
    now = catalog.now_in(connection)
    insert_segments(connection, catalog, adoption.segments, now)
    for table, (number, rows) in adoption.rows.items():
        add_batches(connection, catalog, table, at=now, number=number, rows=rows)
    for batch_id in adoption.arrived_batches:
        connection.execute(
            update(batches)
            .where(batches.c.pipeline == catalog.pipeline, batches.c.batch_id == batch_id)
            .values(status=BatchStatus.IN_CLICKHOUSE, loaded_at=now, reason=None)
        )
    for batch_id in adoption.resent_batches:
        connection.execute(
            update(batches)
            .where(batches.c.pipeline == catalog.pipeline, batches.c.batch_id == batch_id)
            .values(status=BatchStatus.REPLACED)
        )
    _settle_parts(connection, catalog, adoption.arrived_parts, now)
    connection.execute(
        update(requests)
        .where(requests.c.pipeline == catalog.pipeline, requests.c.done_at.is_(None))
        .values(done_at=now, result="withdrawn: the catalog was restored, ask again if it is still wanted")
    )
    _jump(connection, catalog, max(adoption.after_token + 1, int(now)), adoption.after_writes)


def _settle_parts(connection: Connection, catalog: Catalog, names: tuple[str, ...], now: float) -> None:
    """Their rows are under other batch ids: what the ledger says of rows that were sent in other batches."""
    by_table: dict[str, list[Part]] = defaultdict(list)
    for name in names:
        row = connection.execute(
            select(parts).where(parts.c.pipeline == catalog.pipeline, parts.c.part == name)
        ).one()
        by_table[row.table_name].append(part_of(row))
    for table, held in by_table.items():
        batch_id = str(uuid.uuid4())
        connection.execute(
            insert(batches).values(
                pipeline=catalog.pipeline,
                batch_id=batch_id,
                table_name=table,
                status=BatchStatus.REPLACED,
                rows_total=sum(part.live_rows for part in held),
                live_bytes=sum(part.size_bytes for part in held),
                created_at=now,
                sequence=0,
                attempts=0,
                next_attempt_at=0.0,
                reason="its rows came in batches that a restored catalog does not know",
                loaded_at=now,
            )
        )
        for position, part in enumerate(held):
            connection.execute(
                update(parts)
                .where(parts.c.pipeline == catalog.pipeline, parts.c.part == part.part)
                .values(batch_id=batch_id, batch_position=position)
            )


def _jump(connection: Connection, catalog: Catalog, least: int, after_writes: int) -> None:
    """Tokens given out in the lost time are hardly known; seconds since 1970 are more than any of them.

    Writes too go on above those of the lost time, and above what a frozen process of it may still mark.
    """
    mine = leases.c.pipeline == catalog.pipeline
    rows = connection.execute(select(leases).where(mine)).all()
    known = {row.stage: row.token for row in rows}
    writes = max([after_writes, *(row.writes or 0 for row in rows)]) + _WRITES_UNKNOWN
    for stage in Stage:
        token = max(known.get(stage, 0) + 1, least)
        values = {"token": token, "holder": "", "expires_at": 0.0, "writes": writes}
        if stage in known:
            connection.execute(update(leases).where(mine, leases.c.stage == stage).values(**values))
        else:
            connection.execute(insert(leases).values(pipeline=catalog.pipeline, stage=stage, **values))
