"""The two tables that the inbox has besides those of bucket leases, and the DDL that makes them.

`oncehouse_inbox_seen` remembers ids of handled messages; `oncehouse_inbox` holds whole messages until workers have
handled them. Times are seconds since 1970 on the database's clock. Indexes follow the queries of `handled_ids.py`,
`store_messages.py` and `row_updates.py`; each is partial where only few rows are ever looked for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from oncehouse.common.database import take_turn
from oncehouse.messaging.bucket_leases import define_lease_tables
from oncehouse.messaging.database import creation_statements, storage_parameters, wrapped_errors

ABSENT = "Create the tables of the inbox first: `oncehouse inbox init --yes`."


class InboxState(StrEnum):
    WAITING = "waiting"
    DONE = "done"
    PARKED = "parked"
    """A dead letter: all attempts failed; kept with its error until it is retried or dropped."""
    DROPPED = "dropped"


metadata = MetaData()
lease_tables = define_lease_tables(metadata)

handled_ids = Table(
    "oncehouse_inbox_seen",
    metadata,
    Column("consumer", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("seen_at", Float(53), nullable=False),
    Column("keep_until", Float(53), nullable=False),
    PrimaryKeyConstraint("consumer", "message_id", name="oncehouse_inbox_seen_pk"),
    Index("oncehouse_inbox_seen_expiry", "keep_until"),
)

inbox = Table(
    "oncehouse_inbox",
    metadata,
    # The order of arrival. Without AUTOINCREMENT SQLite would reuse the number of a deleted row.
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("inbox", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("key_hash", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("topic", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", Text),
    Column("timestamp_ms", BigInteger),
    Column("digest", LargeBinary, nullable=False),
    Column("received_at", Float(53), nullable=False),
    Column("keep_until", Float(53)),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    # How many attempts ended with a result. Fewer than attempts: a worker died, or is handling it.
    Column("answered", Integer, nullable=False),
    # Until then its key is delayed; empty unless it has failed.
    Column("held_until", Float(53)),
    Column("error", Text),
    Column("settled_at", Float(53)),
    UniqueConstraint("inbox", "message_id", name="oncehouse_inbox_message"),
    sqlite_autoincrement=True,
    # A queue turns over many times its size: vacuum by the number of dead rows, not by a share of the table.
    **storage_parameters({"autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 20_000}),
)


def _partial(name: str, *columns: Any, where: str) -> Index:
    return Index(name, *columns, postgresql_where=text(where), sqlite_where=text(where))


_partial("oncehouse_inbox_waiting", inbox.c.inbox, inbox.c.sequence, where="state = 'waiting'")
_partial("oncehouse_inbox_held", inbox.c.inbox, inbox.c.key_hash, where="held_until IS NOT NULL")
_partial("oncehouse_inbox_parked", inbox.c.inbox, inbox.c.sequence, where="state = 'parked'")
_partial("oncehouse_inbox_expiry", inbox.c.keep_until, where="keep_until IS NOT NULL")


def ddl(dialect: Dialect) -> list[str]:
    """All statements in the order of execution. Existing tables are kept."""
    return creation_statements(metadata.sorted_tables, dialect)


def create_tables(connection: Connection) -> None:
    with wrapped_errors("Creating the tables of the inbox", absent=ABSENT):
        take_turn(connection)
        for statement in ddl(connection.dialect):
            connection.exec_driver_sql(statement)
