"""The pipeline file as typed, frozen values: the one place where YAML and environment come in.

Every word means what ARCHITECTURE.md says. Reading YAML, naming lines and resolving secrets is
`config_file.py`; this module holds only the shape, its defaults and what must hold between fields.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*$")
_DURATION_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|TB)\s*$", re.IGNORECASE)
_SIZE_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def parse_duration(value: object) -> object:
    """Seconds from "500ms", "5s", "10m", "2h", "60d" or a plain number of seconds."""
    if not isinstance(value, str):
        return value
    match = _DURATION.match(value)
    if match is None:
        raise ValueError(f'{value!r} is not a duration; write it like "500ms", "5s", "10m", "2h" or "60d"')
    return float(match[1]) * _DURATION_SECONDS[match[2]]


def parse_size(value: object) -> object:
    """Bytes from "64KB", "16MB", "2GB" or a plain number of bytes."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        raise ValueError(f'{value!r} is not a size; write it like "64KB", "16MB" or "2GB"')
    return int(float(match[1]) * _SIZE_BYTES[match[2].upper()])


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]
Bytes = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Kafka(Section):
    bootstrap_servers: str
    topics: tuple[str, ...] = Field(min_length=1)
    options: dict[str, str | SecretStr] = Field(default_factory=dict)
    """Client settings in librdkafka's and Kafka's common spelling, such as `security.protocol`."""


class Source(Section):
    kafka: Kafka
    format: Literal["json"] = "json"
    fields: dict[str, str] = Field(min_length=1)
    """Field of the event -> ClickHouse type, in the order of the columns."""
    max_message_bytes: Bytes = 1 << 20
    max_depth: int = Field(default=64, ge=1)


class Identity(Section):
    fields: tuple[str, ...] = Field(min_length=1)
    window: Seconds = 60 * 86400.0
    buckets: int = Field(default=16, ge=1, le=4096)
    """A power of two; fixed once the ledger exists."""


class Route(Section):
    field: str
    values: tuple[str | int | bool, ...] = Field(min_length=1)


class BatchLimits(Section):
    min_rows: int = Field(default=10_000, ge=1)
    """A batch of this many rows may go at once; fewer wait for `max_wait`."""
    max_rows: int = Field(default=1_000_000, ge=1)
    max_bytes: Bytes = 256 << 20
    max_wait: Seconds = 5.0
    min_interval: Seconds = 1.0
    """Least time between the starts of two inserts into one table."""


class Table(Section):
    name: str
    """`database.table`, or `table` in the connection's database."""
    columns: dict[str, str] | None = None
    """Column of the table -> field of the event; all fields under their own names when left out."""
    route: Route | None = None
    batch_column: str = "_batch_id"
    """UUID column that holds the batch id: how a retry knows what has arrived."""
    id_column: str | None = "_unique_id"
    """FixedString(16) column for the unique id; null leaves it out."""
    batch: BatchLimits | None = None


class ClickHouse(Section):
    url: str
    user: str = "default"
    password: SecretStr = SecretStr("")
    verify_tls: bool = True
    ca_file: str | None = None
    connect_timeout: Seconds = 10.0
    insert_timeout: Seconds = 300.0


class Epoch(Section):
    max_rows: int = Field(default=1_500_000, ge=1)
    min_rows: int = Field(default=0, ge=0)
    """Wait for this many records before an epoch starts, but never longer than `max_wait`."""
    max_wait: Seconds = 1.0
    part_rows: int = Field(default=500_000, ge=1)
    part_bytes: Bytes = 128 << 20
    """A part rolls over to the next at this many rows or bytes, so that a batch is always whole parts."""


class Retry(Section):
    base: Seconds = 0.5
    longest: Seconds = 300.0


class Ledger(Section):
    catalog: SecretStr
    """SQLAlchemy URL: sqlite:///… or postgresql+psycopg://…"""
    files: str
    """A folder, or s3://bucket/prefix."""


class DeadLetters(Section):
    max_share: float | None = Field(default=0.5, ge=0, le=1)
    """Above this share of dead letters in an epoch the pipeline stops; null never stops."""
    min_records: int = Field(default=1000, ge=1)
    """Epochs with fewer records are not judged by their share."""


class Spark(Section):
    master: str = "local[*]"
    settings: dict[str, str] = Field(default_factory=dict)


class Pipeline(Section):
    pipeline: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    source: Source
    identity: Identity
    tables: tuple[Table, ...] = Field(min_length=1)
    clickhouse: ClickHouse
    ledger: Ledger
    batch: BatchLimits = BatchLimits()
    epoch: Epoch = Epoch()
    retry: Retry = Retry()
    dead_letters: DeadLetters = DeadLetters()
    lease: Seconds = 30.0
    spark: Spark = Spark()

    @model_validator(mode="after")
    def _fields_are_known(self) -> Pipeline:
        known = self.source.fields
        for field in self.identity.fields:
            if field not in known:
                raise ValueError(f"identity.fields names {field!r}, which source.fields does not declare")
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError("tables: each table may stand only once")
        if self.identity.buckets & (self.identity.buckets - 1):
            raise ValueError("identity.buckets must be a power of two")
        for table in self.tables:
            for column, field in (table.columns or {}).items():
                if field not in known:
                    raise ValueError(f"tables: column {column!r} of {table.name} names unknown field {field!r}")
            if table.route is not None and table.route.field not in known:
                raise ValueError(f"tables: route of {table.name} names unknown field {table.route.field!r}")
        return self

    def limits(self, table: str) -> BatchLimits:
        for declared in self.tables:
            if declared.name == table:
                return declared.batch or self.batch
        return self.batch
