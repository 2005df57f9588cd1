"""The tables of model sync in the source database besides those of bucket leases, and the DDL that makes them.

`oncehouse_sync_operations` is the outbox of changed keys, `oncehouse_sync_states` a row a sync (its reading number and
what happened last), `oncehouse_sync_batches` what was read and must be sent unchanged, `oncehouse_sync_backfills` how
far an unfinished backfill has come. Times are seconds since 1970 on the database's clock, but for those of operations
in PostgreSQL.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
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

from oncehouse.common.database import DatabaseClock, take_turn
from oncehouse.messaging.bucket_leases import define_lease_tables
from oncehouse.messaging.database import creation_statements, storage_parameters, wrapped_errors

ABSENT = (
    "Make the tables of model sync first: `python manage.py migrate` with oncehouse.sync.django among INSTALLED_APPS, "
    "or `oncehouse sync init`."
)
ABSENT_STATES = {"42P01", "42883"}
"""What PostgreSQL says of a table or function that is not there."""
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

# A save pays for each of these rows, so they are as cheap as they get: one index, which lists and removes; types and a
# default that ask for no conversion; ids that a connection takes from PostgreSQL a hundred at a time.
operations = Table(
    "oncehouse_sync_operations",
    metadata,
    Column("sync", Text, primary_key=True),
    Column("id", BigInteger, Identity(cache=100), primary_key=True),
    Column("key", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    **storage_parameters(_QUEUE_TABLE),
)

_OPERATIONS_IN_SQLITE = Table(
    operations.name,
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("sync", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("created_at", Float, nullable=False, server_default=DatabaseClock()),
    Index("oncehouse_sync_operations_sync", "sync", "id"),
    # Otherwise a number may come back when the newest row has been deleted.
    sqlite_autoincrement=True,
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


NOTE_FUNCTION = "oncehouse_sync_note"
# The operation of one new row, for its INSERT … RETURNING: planned once a connection, and not each time as a WITH is.
_MAKE_NOTE_FUNCTION = f"""
CREATE OR REPLACE FUNCTION {NOTE_FUNCTION}(the_sync text, the_kind text, the_key bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO {operations.name} (sync, kind, key) VALUES (the_sync, the_kind, '[' || the_key || ']');
  RETURN the_key;
END $$
"""  # noqa: S608 - names of our own


def ddl(dialect: Dialect) -> list[str]:
    """Every statement, in the order in which they run. What exists is kept."""
    if dialect.name == "sqlite":
        return creation_statements(
            [_OPERATIONS_IN_SQLITE if table is operations else table for table in metadata.sorted_tables],
            dialect,
        )
    return [*creation_statements(metadata.sorted_tables, dialect), _MAKE_NOTE_FUNCTION.strip()]


def create_tables(connection: Connection) -> None:
    with wrapped_errors("Making the tables of model sync", absent=ABSENT):
        take_turn(connection)
        for statement in ddl(connection.dialect):
            connection.exec_driver_sql(statement)
