"""How far an unfinished backfill has come, a row a sync: what lets a killed one go on where it was.

Positions move in transactions that have checked the sync's lease, so one that lost it cannot set another back.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.sync.tables import backfills


@dataclass(frozen=True, kw_only=True)
class BackfillCheckpoint:
    after: str | None
    """The last key that is done; None before the first."""
    keys: int
    """Gone through so far."""
    estimate: int
    """About how many there were when it began."""

    @property
    def share(self) -> float:
        """About how much is done, from 0 to 1."""
        return min(1.0, self.keys / self.estimate) if self.estimate else 0.0


def begin_backfill(connection: Connection, sync: str, estimate: int) -> None:
    """From the first key; one that is unfinished stays as it is."""
    new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(backfills)
    connection.execute(new.values(sync=sync, estimate=estimate).on_conflict_do_nothing())


def find_checkpoint(connection: Connection, sync: str) -> BackfillCheckpoint | None:
    row = connection.execute(
        select(backfills.c.position, backfills.c.done_keys, backfills.c.estimate).where(
            backfills.c.sync == sync
        )
    ).one_or_none()
    return (
        None
        if row is None
        else BackfillCheckpoint(after=row.position, keys=row.done_keys, estimate=row.estimate)
    )


def move_checkpoint(connection: Connection, sync: str, after: str, keys: int) -> None:
    """`keys` more are done, the last of them is `after`."""
    connection.execute(
        update(backfills)
        .where(backfills.c.sync == sync)
        .values(position=after, done_keys=backfills.c.done_keys + keys)
    )


def end_backfill(connection: Connection, sync: str) -> None:
    connection.execute(delete(backfills).where(backfills.c.sync == sync))
