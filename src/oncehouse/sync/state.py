"""A row a sync: its reading number, and what happened last, for `need_sync` and `sync status`.

A reading number is taken under the sync's lease, in the same transaction that checks its token. It grows with every
taking, whatever the clock does; being near the clock's microseconds, it also grows when the table was made again.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, Connection, Engine, case, cast, select, update
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.database import open_reader, transact
from oncehouse.sync.tables import ABSENT, states

_LONGEST_ERROR = 2_000


@dataclass(frozen=True, kw_only=True)
class SyncState:
    reading: int = 0
    started_seconds_ago: float | None = None
    synced_seconds_ago: float | None = None
    rows_synced: int = 0
    failed_seconds_ago: float | None = None
    failures: int = 0
    """Since the last success."""
    last_error: str | None = None


def make_state(connection: Connection, sync: str) -> None:
    """The row of a sync; one that is there stays as it is."""
    new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(states)
    connection.execute(new.values(sync=sync).on_conflict_do_nothing())


def take_reading(connection: Connection, sync: str) -> int:
    """The next number, for what is read after this transaction; the caller has checked its lease in it."""
    now = cast(DatabaseClock() * 1_000_000, BigInteger)
    following = states.c.reading + 1
    taken = update(states).where(states.c.sync == sync)
    taken = taken.values(reading=case((now > following, now), else_=following))
    return int(connection.execute(taken.returning(states.c.reading)).scalar_one())


def note_start(engine: Engine, sync: str) -> None:
    with transact(engine, f"Sync {sync}: noting its start", absent=ABSENT) as connection:
        make_state(connection, sync)
        connection.execute(update(states).where(states.c.sync == sync).values(started_at=DatabaseClock()))


def note_success(engine: Engine, sync: str, rows: int) -> None:
    with transact(engine, f"Sync {sync}: noting what was synced", absent=ABSENT) as connection:
        connection.execute(
            update(states)
            .where(states.c.sync == sync)
            .values(synced_at=DatabaseClock(), rows_synced=states.c.rows_synced + rows, failures=0)
        )


def note_failure(engine: Engine, sync: str, error: str) -> None:
    with transact(engine, f"Sync {sync}: noting a failure", absent=ABSENT) as connection:
        make_state(connection, sync)
        connection.execute(
            update(states)
            .where(states.c.sync == sync)
            .values(
                failed_at=DatabaseClock(),
                failures=states.c.failures + 1,
                last_error=error[:_LONGEST_ERROR],
            )
        )


def read_state(connection: Connection, sync: str) -> SyncState:
    now = DatabaseClock()
    found = connection.execute(
        select(
            states.c.reading,
            (now - states.c.started_at).label("started_seconds_ago"),
            (now - states.c.synced_at).label("synced_seconds_ago"),
            states.c.rows_synced,
            (now - states.c.failed_at).label("failed_seconds_ago"),
            states.c.failures,
            states.c.last_error,
        ).where(states.c.sync == sync)
    ).one_or_none()
    return SyncState() if found is None else SyncState(**found._mapping)  # noqa: SLF001 - SQLAlchemy's public name


def read_sync_state(engine: Engine, sync: str) -> SyncState:
    with open_reader(engine, f"Sync {sync}: reading its state", absent=ABSENT) as connection:
        return read_state(connection, sync)
