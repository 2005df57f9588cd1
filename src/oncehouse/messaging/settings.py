"""The messaging file, `messaging.yaml`, as frozen values.

Read like a pipeline file: all problems at once with their lines, `${env:NAME}` and `${file:/path}` for secrets, paths
relative to the file's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, field_validator

from oncehouse.common.kafka_security import refuse_unused_security
from oncehouse.config.field_types import SecretSettings, Servers
from oncehouse.config.file_loader import PlaceKind, parse_section, read_text
from oncehouse.config.pipeline import Section
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.settings import CdcSettings
from oncehouse.messaging.inbox.settings import InboxSettings
from oncehouse.messaging.outbox.relay.settings import RelaySettings

DEFAULT_FILE = Path("messaging.yaml")
_PATHS: tuple[tuple[tuple[str, ...], PlaceKind], ...] = ((("database",), "sqlite"),)
_IN_MEMORY = frozenset({"sqlite://", "sqlite:///", "sqlite:///:memory:"})
_ABSENT = "write kafka.bootstrap_servers and database into it, as docs/reference/messaging-file.md shows"


class KafkaAddress(Section):
    bootstrap_servers: Servers
    """Addresses of the brokers: `host:port`, separated by commas."""
    options: SecretSettings = Field(default_factory=dict)
    """Settings of the Kafka client as librdkafka names them, such as `security.protocol`."""

    @field_validator("options")
    @classmethod
    def _security_is_used(cls, options: Mapping[str, str | SecretStr]) -> Mapping[str, str | SecretStr]:
        refuse_unused_security(options)
        return options


def _check_table(name: str) -> str:
    from oncehouse.messaging.outbox.tables import check_outbox_name

    try:
        return check_outbox_name(name)
    except ConfigurationError as error:
        # pydantic collects ValueErrors; any other error would hide the rest of the file's problems.
        raise ValueError(str(error)) from None


class OutboxSettings(Section):
    """The section `outbox`."""

    table: Annotated[str, AfterValidator(_check_table)] = "oncehouse_outbox"
    """The outbox table, with its schema if it has one: `sales.outbox`."""
    relay: RelaySettings = RelaySettings()
    """Settings of the relay."""


class MessagingSettings(Section):
    kafka: KafkaAddress | None = None
    """The Kafka brokers."""
    database: SecretStr | None = None
    """The database of outbox and inbox: postgresql+psycopg://… or sqlite:///file.db (relative to this file)."""
    inbox: InboxSettings = Field(default_factory=InboxSettings)
    """Stored inboxes: their workers and the HTTP endpoint."""
    outbox: OutboxSettings = OutboxSettings()
    """The outbox table and its relay."""
    cdc: CdcSettings = CdcSettings()
    """Kafka Connect, and limits for replication slots."""

    @field_validator("database")
    @classmethod
    def _outlives_the_command(cls, database: SecretStr | None) -> SecretStr | None:
        if database is not None and database.get_secret_value() in _IN_MEMORY:
            raise ValueError(
                "is a database in memory, which does not outlive the command; write sqlite:///file.db"
            )
        return database

    def require_kafka(self) -> KafkaAddress:
        if self.kafka is None:
            raise ConfigurationError(
                "the messaging file has no kafka.bootstrap_servers, which this command needs; write the brokers' "
                "addresses there, such as localhost:9092"
            )
        return self.kafka

    def require_database(self) -> str:
        if self.database is None:
            raise ConfigurationError(
                "the messaging file has no database, which this command needs; write its URL there, such as "
                "postgresql+psycopg://user@host/database"
            )
        return self.database.get_secret_value()


def load_messaging(
    file: Path = DEFAULT_FILE, environment: Mapping[str, str] | None = None
) -> MessagingSettings:
    return parse_section(
        read_text(file, absent=_ABSENT),
        str(file),
        section=MessagingSettings,
        example="kafka: {bootstrap_servers: localhost:9092}",
        folder=file.absolute().parent,
        environment=environment,
        paths=_PATHS,
    )
