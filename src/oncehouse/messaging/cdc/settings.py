"""The section `cdc` of messaging.yaml."""

from __future__ import annotations

from pydantic import Field, SecretStr

from oncehouse.config.base import Section
from oncehouse.config.field_types import Bytes, ConnectUrl


class CdcSettings(Section):
    connect: ConnectUrl = "http://localhost:8083"
    """Address of a Kafka Connect worker."""
    user: str | None = None
    """User for basic authentication with Kafka Connect."""
    password: SecretStr = SecretStr("")
    """That user's password; take it from the environment or a file."""
    lag_limit: Bytes = 1 << 30
    """`cdc status` warns when a slot makes the database keep more of its log than this."""
    full_share: float = Field(default=0.7, gt=0, le=1)
    """`cdc status` warns when this share of the space for the log is used."""
    wal_disk: Bytes | None = None
    """The space for the log on the database's disk, if the server sets no max_slot_wal_keep_size."""
