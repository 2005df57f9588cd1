"""The settings of Debezium's connector for PostgreSQL, for tables and for the outbox, as Kafka Connect takes them.

Pure. Each connector has its own slot and publication, named after its topic prefix. The password is never included:
Connect resolves a reference. Comments say what each setting is for; docs/cdc.md explains it to users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oncehouse.config.field_types import check_topic
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.source_tables import SourceTable, parse_table_name
from oncehouse.messaging.message import MESSAGE_ID

CONNECTOR_CLASS = "io.debezium.connector.postgresql.PostgresConnector"
OUTBOX_HEADERS = "oncehouse-headers"
"""The header that holds a row's own headers as the outbox stores them: the router cannot split them."""

_JSON = "org.apache.kafka.connect.json.JsonConverter"
_BINARY = "io.debezium.converters.BinaryDataConverter"
_HEARTBEAT = "oncehouse-heartbeat"
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,39}")
_REFERENCE = re.compile(r"\$\{[A-Za-z0-9_.-]+:[^}]+\}")

Config = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Database:
    """The database's address as Kafka Connect reaches it."""

    host: str
    port: int
    name: str
    user: str
    password: str | None = None
    """A reference that Connect resolves, such as `${env:NAME}`; None if the user has no password."""
    tls: str | None = None
    """`sslmode`, if the URL has one."""


@dataclass(frozen=True, kw_only=True)
class ConnectorTopics:
    """How Connect creates missing topics."""

    partitions: int = 4
    replication_factor: int = -1
    """-1 is the broker's default."""


def check_prefix(prefix: str) -> str:
    """The prefix becomes part of topic names, and of the names of slot and publication."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"{prefix!a} is not a valid prefix; use lower-case letters, digits and '_', a letter first, at most 40"
        )
    return prefix


def check_reference(text: str) -> str:
    """Raises ConfigurationError for anything that may be a password itself, without showing it."""
    if not _REFERENCE.fullmatch(text):
        raise ConfigurationError(
            "the password must be a reference that Kafka Connect resolves, such as ${env:NAME} or "
            "${file:/path:key}; a password itself would stand in files and in Connect's topic"
        )
    return text


def topic_of(prefix: str, table: SourceTable) -> str:
    try:
        return check_topic(f"{prefix}.{table.full_name}")
    except ValueError as error:
        raise ConfigurationError(f"{table.full_name}: {error}") from None


def make_table_connector(
    prefix: str, database: Database, tables: Sequence[SourceTable], topics: ConnectorTopics
) -> Config:
    """Changes of tables, each into the topic `prefix.schema.table`, in Debezium's envelope with its schema."""
    return {
        **_base(check_prefix(prefix), database, topics),
        "table.include.list": ",".join(_match_table(table.full_name) for table in tables),
        # With its schema an envelope has all types, also after ALTER TABLE; compressed, this costs little.
        **_converters(_JSON, {"schemas.enable": "true"}),
    }


def make_outbox_connector(prefix: str, database: Database, table: str, topics: ConnectorTopics) -> Config:
    """Rows inserted into an outbox table, each into the topic that it names, as the relay would send it."""
    full_name = ".".join(parse_table_name(table))
    router = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "predicate": "isOutbox",
        "table.field.event.id": "id",
        "table.field.event.key": "key",
        "table.field.event.payload": "value",
        "table.fields.additional.placement": f"id:header:{MESSAGE_ID},headers:header:{OUTBOX_HEADERS}",
        "route.by.field": "topic",
        "route.topic.regex": "(.*)",
        "route.topic.replacement": "$1",
        # A row without a value is a message without one.
        "route.tombstone.on.empty.payload": "true",
    }
    return {
        **_base(check_prefix(prefix), database, topics),
        "table.include.list": _match_table(full_name),
        # Updates by a relay and deletes by a clean-up are not messages.
        "skipped.operations": "u,d,t",
        "transforms": "outbox",
        **{f"transforms.outbox.{name}": value for name, value in router.items()},
        # Heartbeats bypass the router, which would take them for rows.
        "predicates": "isOutbox",
        "predicates.isOutbox.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.isOutbox.pattern": _match_table(f"{prefix}.{full_name}"),
        # Bytes stay bytes; only heartbeats have a structure to be written as JSON.
        **_converters(
            _BINARY, {"delegate.converter.type": _JSON, "delegate.converter.type.schemas.enable": "false"}
        ),
    }


def slot_of(config: Mapping[str, str]) -> str | None:
    """The slot of a PostgreSQL connector; None for other connectors."""
    if config.get("connector.class") != CONNECTOR_CLASS:
        return None
    return config.get("slot.name", "debezium")


def holds_plain_password(config: Mapping[str, str]) -> bool:
    password = config.get("database.password")
    return bool(password) and not _REFERENCE.fullmatch(password or "")


def _base(prefix: str, database: Database, topics: ConnectorTopics) -> Config:
    return {
        "connector.class": CONNECTOR_CLASS,
        "tasks.max": "1",
        "database.hostname": database.host,
        "database.port": str(database.port),
        "database.dbname": database.name,
        "database.user": database.user,
        **({"database.password": database.password} if database.password else {}),
        **({"database.sslmode": database.tls} if database.tls else {}),
        "plugin.name": "pgoutput",
        "slot.name": f"oncehouse_{prefix}",
        "publication.name": f"oncehouse_{prefix}",
        "publication.autocreate.mode": "filtered",
        "topic.prefix": prefix,
        "snapshot.mode": "initial",
        "decimal.handling.mode": "precise",
        # In microseconds an interval would lose its months.
        "interval.handling.mode": "string",
        # The slot advances only with what the connector reads. While only other tables change, a message in the log,
        # which reaches no topic, lets the database discard its log.
        "heartbeat.interval.ms": "10000",
        "heartbeat.action.query": f"SELECT pg_logical_emit_message(false, '{_HEARTBEAT}', '')",
        "message.prefix.exclude.list": _HEARTBEAT,
        "topic.creation.default.partitions": str(topics.partitions),
        "topic.creation.default.replication.factor": str(topics.replication_factor),
        "producer.override.compression.type": "lz4",
    }


def _converters(class_: str, options: Config) -> Config:
    return {
        name: value
        for field in ("key", "value")
        for name, value in (
            (f"{field}.converter", class_),
            *((f"{field}.converter.{option}", value) for option, value in options.items()),
        )
    }


def _match_table(full_name: str) -> str:
    """A Java regular expression that matches exactly this name of letters, digits, '.', '_' and '-'."""
    return full_name.replace(".", r"\.")
