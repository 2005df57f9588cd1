"""The tables of model sync in the source database, beside those of bucket leases, and the DDL that makes them.

`oncehouse_sync_operations` is the outbox of changed keys, `oncehouse_sync_states` a row a sync (its reading number and
what happened last), `oncehouse_sync_batches` what was read and must be sent unchanged, `oncehouse_sync_backfills` how
far an unfinished backfill has come. Times are seconds since 1970 on the database's clock.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Float,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from oncehouse.databases import DatabaseClock, take_turn
from oncehouse.messaging.bucket_leases import define_lease_tables
from oncehouse.messaging.database import creation_statements, storage_parameters, wrapped_errors

ABSENT = (
    "Make the tables of model sync first: `python manage.py migrate` with oncehouse.sync.django among INSTALLED_APPS, "
    "or `oncehouse sync init`."
)
LONGEST_SYNC_NAME = 120

metadata = MetaData()
lease_tables = define_lease_tables(metadata)

# A queue turns over many times its size: vacuum goes by rows that died, not by a share of the table.
_QUEUE_TABLE = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 20_000,
    "autovacuum_vacuum_cost_delay": 0,
    "vacuum_truncate": "false",
}

operations = Table(
    "oncehouse_sync_operations",
    metadata,
    # From SQLite a number may otherwise come back when the newest row has been deleted.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
    Column("sync", String(LONGEST_SYNC_NAME), nullable=False),
    Column("key", Text, nullable=False),
    Column("kind", String(6), nullable=False),
    Column("created_at", Float(53), nullable=False, server_default=DatabaseClock()),
    Index("oncehouse_sync_operations_sync", "sync", "id"),
    sqlite_autoincrement=True,
    **storage_parameters(_QUEUE_TABLE),
)

states = Table(
    "oncehouse_sync_states",
    metadata,
    Column("sync", String(LONGEST_SYNC_NAME), primary_key=True),
    Column("reading", BigInteger, nullable=False, server_default=text("0")),
    Column("started_at", Float(53)),
    Column("synced_at", Float(53)),
    Column("rows_synced", BigInteger, nullable=False, server_default=text("0")),
    Column("failed_at", Float(53)),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
)

batches = Table(
    "oncehouse_sync_batches",
    metadata,
    Column("sync", String(LONGEST_SYNC_NAME), primary_key=True),
    Column("batch_id", String(36), nullable=False),
    Column("reading", BigInteger, nullable=False),
    Column("rows", Integer, nullable=False),
    # Ids of its operations, a JSON list: they are removed once ClickHouse has the batch.
    Column("operations", Text, nullable=False),
    # An Arrow stream of one record batch.
    Column("body", LargeBinary, nullable=False),
    Column("created_at", Float(53), nullable=False, server_default=DatabaseClock()),
)

backfills = Table(
    "oncehouse_sync_backfills",
    metadata,
    Column("sync", String(LONGEST_SYNC_NAME), primary_key=True),
    # The last key that is done, in the spelling of operations; null before the first.
    Column("position", Text),
    Column("done_keys", BigInteger, nullable=False, server_default=text("0")),
    Column("estimate", BigInteger, nullable=False),
    Column("started_at", Float(53), nullable=False, server_default=DatabaseClock()),
)


def ddl(dialect: Dialect) -> list[str]:
    """Every statement, in the order in which they run. What exists is kept."""
    return creation_statements(metadata.sorted_tables, dialect)


def create_tables(connection: Connection) -> None:
    with wrapped_errors("Making the tables of model sync", absent=ABSENT):
        take_turn(connection)
        for statement in ddl(connection.dialect):
            connection.exec_driver_sql(statement)
