"""History: catalog rows that are no longer needed one by one, added up by the hour.

Past the window, when their files have gone, epochs become one row an hour and kind, the ranges they settled one
row a partition, and batches one row an hour and table. Sums stay, so totals never change.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, update

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import (
    COUNTS,
    attempts,
    batch_hours,
    batches,
    epoch_hours,
    epochs,
    key_files,
    parts,
    query_batches,
    ranges,
)
from oncehouse.ledger.models import BatchStatus, Stage

ROLLED_UP = 0
"""The epoch of a range that several epochs settled together."""


def roll_up_epochs(catalog: Catalog, token: int, *, before: float) -> int:
    """Add up epochs registered before this time whose files have gone; the last one always stays."""

    def run(connection: Connection) -> int:
        mine = epochs.c.pipeline == catalog.pipeline
        last = connection.execute(select(func.max(epochs.c.epoch)).where(mine)).scalar_one()
        oldest_kept = connection.execute(
            select(func.min(key_files.c.epoch)).where(key_files.c.pipeline == catalog.pipeline)
        ).scalar_one()
        bound = min(found for found in (last, oldest_kept) if found is not None) if last else 0
        rows = connection.execute(
            select(epochs).where(mine, epochs.c.registered_at < before, epochs.c.epoch < bound)
        ).all()
        for row in rows:
            key = {"hour": int(row.registered_at // 3600), "kind": row.kind}
            added = {name: row._mapping[name] for name in COUNTS}  # noqa: SLF001 - columns by name
            _add(connection, catalog, epoch_hours, key, {"epochs": 1, **added})
            connection.execute(delete(epochs).where(mine, epochs.c.epoch == row.epoch))
        if rows:
            _merge_ranges(connection, catalog, upto=max(row.epoch for row in rows))
            _merge_batches(connection, catalog, upto=max(row.epoch for row in rows))
        return len(rows)

    return catalog.write(Stage.RETENTION, token, run)


def _add(
    connection: Connection,
    catalog: Catalog,
    table: Table,
    key: dict[str, object],
    added: dict[str, int],
) -> None:
    here = [table.c.pipeline == catalog.pipeline, *(table.c[name] == value for name, value in key.items())]
    updated = connection.execute(
        update(table)
        .where(*here)
        .values({table.c[name]: table.c[name] + value for name, value in added.items()})
    )
    if not updated.rowcount:
        connection.execute(insert(table).values(pipeline=catalog.pipeline, **key, **added))


def _merge_ranges(connection: Connection, catalog: Catalog, *, upto: int) -> None:
    """Ranges that join become one; a gap, which `verify` would report, stays a gap."""
    mine = (ranges.c.pipeline == catalog.pipeline, ranges.c.epoch <= upto)
    rows = connection.execute(
        select(ranges).where(*mine).order_by(ranges.c.topic, ranges.c.partition_id, ranges.c.start_offset)
    ).all()
    joined: list[list[object]] = []
    for row in rows:
        if joined and joined[-1][:2] == [row.topic, row.partition_id] and joined[-1][3] == row.start_offset:
            joined[-1][3:] = [row.end_offset, row.leader_epoch]
        else:
            joined.append([row.topic, row.partition_id, row.start_offset, row.end_offset, row.leader_epoch])
    connection.execute(delete(ranges).where(*mine))
    for topic, partition, start, end, leader_epoch in joined:
        connection.execute(
            insert(ranges).values(
                pipeline=catalog.pipeline,
                topic=topic,
                partition_id=partition,
                start_offset=start,
                end_offset=end,
                epoch=ROLLED_UP,
                leader_epoch=leader_epoch,
            )
        )


def _merge_batches(connection: Connection, catalog: Catalog, *, upto: int) -> None:
    """Batches of a query that follow each other become one row: a settled one stays settled for ever."""
    mine = (query_batches.c.pipeline == catalog.pipeline, query_batches.c.epoch <= upto)
    rows = connection.execute(
        select(query_batches).where(*mine).order_by(query_batches.c.query, query_batches.c.first_batch)
    ).all()
    joined: list[dict[str, object]] = []
    for row in rows:
        last = joined[-1] if joined else {}
        if last.get("query") == row.query and last.get("last_batch") == row.first_batch - 1:
            last["last_batch"] = row.last_batch
        else:
            joined.append({"query": row.query, "first_batch": row.first_batch, "last_batch": row.last_batch})
    connection.execute(delete(query_batches).where(*mine))
    for span in joined:
        connection.execute(insert(query_batches).values(pipeline=catalog.pipeline, epoch=ROLLED_UP, **span))


def roll_up_batches(catalog: Catalog, token: int, *, before: float) -> int:
    """Add up batches loaded before this time whose parts have all gone."""

    def run(connection: Connection) -> int:
        mine = batches.c.pipeline == catalog.pipeline
        held = select(parts.c.batch_id).where(
            parts.c.pipeline == catalog.pipeline, parts.c.batch_id == batches.c.batch_id
        )
        rows = connection.execute(
            select(batches).where(
                mine,
                batches.c.status == BatchStatus.IN_CLICKHOUSE,
                batches.c.loaded_at < before,
                # Its views are unproven, which a person should still see.
                batches.c.reason.is_(None),
                ~held.exists(),
            )
        ).all()
        for row in rows:
            add_batches(connection, catalog, row.table_name, at=row.loaded_at, number=1, rows=row.rows_total)
            connection.execute(
                delete(attempts).where(
                    attempts.c.pipeline == catalog.pipeline, attempts.c.batch_id == row.batch_id
                )
            )
            connection.execute(delete(batches).where(mine, batches.c.batch_id == row.batch_id))
        return len(rows)

    return catalog.write(Stage.RETENTION, token, run)


def add_batches(
    connection: Connection, catalog: Catalog, table: str, *, at: float, number: int, rows: int
) -> None:
    """Batches of which only the sum is known, as of this time."""
    key = {"table_name": table, "hour": int(at // 3600)}
    _add(connection, catalog, batch_hours, key, {"batches": number, "rows_total": rows})


def rolled_up_rows(catalog: Catalog) -> dict[str, int]:
    """Rows by table of the pipeline's batches that are only known in sum."""
    return _rolled_up_rows(catalog, batch_hours.c.pipeline == catalog.pipeline)


def rolled_up_rows_of_all(catalog: Catalog) -> dict[str, int]:
    """The same for all pipelines of the catalog together, which may share tables."""
    return _rolled_up_rows(catalog)


def _rolled_up_rows(catalog: Catalog, *chosen: ColumnElement[bool]) -> dict[str, int]:
    query = (
        select(batch_hours.c.table_name, func.sum(batch_hours.c.rows_total))
        .where(*chosen)
        .group_by(batch_hours.c.table_name)
    )
    with catalog.read() as connection:
        return {str(table): int(rows) for table, rows in connection.execute(query).all()}
