"""The outbox table: each row is a message that a committed transaction wants sent.

Order by key: `seq` grows with every insert, so rows of a key that are written under the caller's own lock are in order.
`bucket` depends on the key alone, so the holder of a bucket holds every row of its keys. A row waits while `sent_at`
and `parked_at` are empty. Users can choose the table's name; the tables of bucket leases are in the same schema. On
PostgreSQL a trigger notifies relays, but only while one of them sleeps: NOTIFY serializes commits.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cache
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Engine,
    Float,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
    and_,
    inspect,
    text,
)

from oncehouse.common.database import DatabaseClock, begin
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.bucket_leases import LeaseTables, define_lease_tables
from oncehouse.messaging.database import creation_statements, storage_parameters

DEFAULT_TABLE = "oncehouse_outbox"
BUCKETS = 64
"""The number of shares of the work. Never changed: rows of a key must stay in one bucket."""
CHANNEL = "oncehouse_outbox"
"""The channel on which PostgreSQL notifies relays; the payload is the table's name."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
# A queue turns over many times its size: vacuum by the number of dead rows, not by a share of the table, without delay.
_QUEUE_TABLE = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 20_000,
    "autovacuum_vacuum_insert_scale_factor": 0,
    "autovacuum_vacuum_insert_threshold": 200_000,
    "autovacuum_analyze_scale_factor": 0,
    "autovacuum_analyze_threshold": 50_000,
    "autovacuum_vacuum_cost_delay": 0,
    # Truncating empty pages takes an exclusive lock, and a queue needs them again soon.
    "vacuum_truncate": "false",
}
_WAKE_FUNCTION = """CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql AS $wake$
BEGIN
  IF EXISTS (
    SELECT 1 FROM {members}
    WHERE name = '{name}' AND asleep AND expires_at > extract(epoch from clock_timestamp())
  ) THEN
    PERFORM pg_notify('{channel}', '{name}');
  END IF;
  RETURN NULL;
END $wake$"""
_WAKE_TRIGGER = """CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {outbox}
FOR EACH STATEMENT EXECUTE FUNCTION {function}"""


@dataclass(frozen=True, kw_only=True)
class OutboxTables:
    name: str
    outbox: Table
    leases: LeaseTables


@cache
def outbox_tables(name: str = DEFAULT_TABLE) -> OutboxTables:
    """`name` may include a schema: `sales.outbox`. Raises ConfigurationError for an invalid name."""
    schema, _, table = check_outbox_name(name).rpartition(".")
    metadata = MetaData()
    return OutboxTables(
        name=name,
        outbox=_define_outbox(metadata, table, schema or None),
        leases=define_lease_tables(metadata, schema or None),
    )


def check_outbox_name(name: str) -> str:
    parts = name.split(".")
    if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
        raise ConfigurationError(
            f"{name!a} is not a name for an outbox table; use lowercase letters, digits and '_' (at most 48, no digit "
            "first), with `schema.` before it if need be"
        )
    return name


def bucket_of(key: bytes | None, message_id: UUID) -> int:
    """CRC-32 of the key, so that services in other languages can write rows, too. Without a key there is no order."""
    return zlib.crc32(message_id.bytes if key is None else key) % BUCKETS


def _define_outbox(metadata: MetaData, name: str, schema: str | None) -> Table:
    table = Table(
        name,
        metadata,
        # SQLite could otherwise reuse a number after the newest row was deleted.
        Column("seq", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
        Column("id", Uuid, nullable=False),
        Column("bucket", SmallInteger, nullable=False),
        Column("topic", String(249), nullable=False),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        # A JSON list of [name, value]; see `header_encoding`.
        Column("headers", Text),
        Column("created_at", Float(53), nullable=False, server_default=DatabaseClock()),
        # How often sending failed, and the last error.
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("last_error", Text),
        # Parked: Kafka refuses the message, or (`behind`) it waits for a parked one of its key.
        Column("parked_at", Float(53)),
        Column("behind", Uuid),
        # Set on sent rows if they are kept: when, and their place in Kafka.
        Column("sent_at", Float(53)),
        Column("sent_partition", Integer),
        Column("sent_offset", BigInteger),
        schema=schema,
        sqlite_autoincrement=True,
        **storage_parameters(_QUEUE_TABLE),
    )
    waiting = and_(table.c.sent_at.is_(None), table.c.parked_at.is_(None))
    parked, sent = (
        and_(table.c.parked_at.is_not(None), table.c.behind.is_(None)),
        table.c.sent_at.is_not(None),
    )
    behind = table.c.behind.is_not(None)
    columns = table.c
    Index(f"{name}_waiting", columns.bucket, columns.seq, postgresql_where=waiting, sqlite_where=waiting)
    Index(f"{name}_parked", columns.bucket, columns.topic, postgresql_where=parked, sqlite_where=parked)
    Index(f"{name}_behind", columns.behind, postgresql_where=behind, sqlite_where=behind)
    Index(f"{name}_sent", columns.sent_at, postgresql_where=sent, sqlite_where=sent)
    Index(f"{name}_id", columns.id, unique=True)
    return table


def ddl_statements(tables: OutboxTables, dialect: Dialect) -> tuple[str, ...]:
    """Every statement that makes the outbox, in order; what exists is kept."""
    made = (tables.leases.leases, tables.leases.members, tables.outbox)
    statements = creation_statements(made, dialect)
    if dialect.name == "postgresql":
        statements += _wake_statements(tables, dialect)
    return tuple(statements)


def create_outbox(connection: Connection, tables: OutboxTables) -> None:
    """Make the tables in the caller's transaction; what exists is kept."""
    for statement in ddl_statements(tables, connection.dialect):
        connection.exec_driver_sql(statement.replace("%", "%%"))


def require_tables(engine: Engine, tables: OutboxTables) -> None:
    """Raises ConfigurationError where the outbox has not been made yet."""
    with begin(engine, whose=f"Outbox {tables.name}") as connection:
        if not inspect(connection).has_table(tables.outbox.name, schema=tables.outbox.schema):
            raise ConfigurationError(
                f"There is no table {tables.name} in this database. `oncehouse outbox init --yes` makes it."
            )


def _wake_statements(tables: OutboxTables, dialect: Dialect) -> tuple[str, str]:
    preparer, schema = dialect.identifier_preparer, tables.outbox.schema
    trigger = f"{tables.outbox.name}_wake"
    # Names are lowercase letters, digits and '_' alone (`check_outbox_name`), so they can stand in a literal.
    names = {
        "outbox": preparer.format_table(tables.outbox),
        "members": preparer.format_table(tables.leases.members),
        "function": f"{preparer.quote_schema(schema)}.{trigger}()" if schema else f"{trigger}()",
        "trigger": trigger,
        "name": tables.name,
        "channel": CHANNEL,
    }
    return _WAKE_FUNCTION.format(**names), _WAKE_TRIGGER.format(**names)
