"""The pipeline file as typed, frozen values: the one place where YAML and environment come in.

Every word means what ARCHITECTURE.md says. Reading YAML, naming lines and resolving secrets is
`file_loader.py`, the wording of problems `problems.py`; this module holds only the keys, their defaults and
what must hold between fields. The text under a field is what editors show for its key.
Building any section by hand raises ConfigurationError with the same wording as the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from oncehouse.common.kafka_security import refuse_unused_security
from oncehouse.common.redaction import HIDDEN, hide_credentials, is_secret_setting, reveal
from oncehouse.config.base import Section, SectionT
from oncehouse.config.cross_checks import find_contradictions, items, sound_types
from oncehouse.config.field_types import (
    Bytes,
    ColumnTypeText,
    Count,
    FromSchema,
    HttpUrl,
    Name,
    RouteValue,
    Seconds,
    SecretSettings,
    Servers,
    Settings,
    SparkMaster,
    TableName,
    Topic,
    refuse_crossed,
    refuse_needless_ca,
    refuse_repeats,
)
from oncehouse.config.formats import DEBEZIUM_IDENTITY, Avro, Csv, Debezium, Text, check_format_fields
from oncehouse.config.problems import Path, combine_problems, format_problems
from oncehouse.config.protobuf import Protobuf, derive_missing_fields
from oncehouse.config.transform import (
    ComputedColumn,
    Expressions,
    Function,
    Lookup,
    TransformSection,
    compile_transform,
)
from oncehouse.errors import ConfigurationError

__all__ = [
    "BatchLimits",
    "ClickHouse",
    "ComputedColumn",
    "DeadLetters",
    "Epoch",
    "Function",
    "Identity",
    "Kafka",
    "Ledger",
    "Lookup",
    "Pipeline",
    "Retry",
    "Route",
    "Section",
    "SectionT",
    "Source",
    "Spark",
    "Table",
    "TransformSection",
    "reveal",
]

_SPARK_SECRET = "spark.authenticate.secret"  # noqa: S105 - the name of a setting
_OWNED_OPTIONS = {
    "bootstrap.servers": "it is source.kafka.bootstrap_servers",
    "enable.auto.commit": "offsets are settled in the ledger, never in Kafka",
    "auto.offset.reset": "the ledger says where to read on; new partitions begin at the earliest offset",
    "group.id": "the ledger holds the offsets, so that no consumer group is needed",
    "key.deserializer": "records are read as bytes",
    "value.deserializer": "records are read as bytes",
}


class Kafka(Section):
    bootstrap_servers: Servers
    """Where to find the brokers: `host:port`, several with commas between."""
    topics: tuple[Topic, ...] = Field(min_length=1)
    """Topics to read, each from its earliest record on."""
    options: SecretSettings = Field(default_factory=dict)
    """Settings of the Kafka client in Kafka's own spelling, such as `security.protocol`."""
    reader: Literal["connector", "direct"] = "connector"
    """What reads the records: Spark's Kafka connector, or the pipeline's tasks themselves, for less processor time."""
    longest_outage: Seconds = 3 * 86400.0
    """The longest that the pipeline may be away. A topic that keeps its records for less is refused."""

    @field_validator("topics")
    @classmethod
    def _topics_differ(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        return refuse_repeats(topics)

    @field_validator("options")
    @classmethod
    def _options_are_free(cls, options: Mapping[str, str | SecretStr]) -> Mapping[str, str | SecretStr]:
        for option in options:
            if reason := _OWNED_OPTIONS.get(option.removeprefix("kafka.")):
                raise ValueError(f"{option!r} cannot be set here: {reason}")
            if option.startswith("kafka."):
                raise ValueError(f"write {option.removeprefix('kafka.')!r} without the prefix `kafka.`")
        refuse_unused_security(options)
        return options


class Source(Section):
    kafka: Kafka | None = None
    """The brokers and topics that events come from; left out with `format: frame`."""
    format: Literal["json", "jsonl", "csv", "text", "protobuf", "avro", "debezium", "frame"] = "json"
    """How records are written: `json` is one object a record, `jsonl` one or more, each on its line; `frame` means
    rows of DataFrames and imports alone."""
    fields: dict[Name, ColumnTypeText] = Field(default_factory=dict, min_length=1)
    """Field of the event and its ClickHouse type, in the order of the columns. Protobuf knows them by itself."""
    new_fields: Literal["ignore", "add", "stop"] = "ignore"
    """What happens when records have a field that is not declared: it stays in the kept bytes, becomes a column, or
    stops the pipeline."""
    unused_fields: tuple[Name, ...] = ()
    """Fields that records have and no table takes; they are never new."""
    optional_fields: tuple[Name, ...] = ()
    """Fields that versions of the schema may lack, and records may leave out, although ids or the rows of a table
    depend on them: they count with their default or null. Others without such a field are refused."""
    max_message_bytes: Bytes = 1 << 20
    """A larger record becomes a dead letter."""
    max_depth: Count = Field(default=64, ge=1, le=400)
    """A record nested deeper than this becomes a dead letter."""
    schema_wait: Seconds | None = 7 * 86400.0
    """How long records of unknown schemas wait before they become dead letters; null: for ever."""
    avro: Avro | None = None
    """Where Avro's schemas come from; only with `format: avro`."""
    protobuf: Protobuf | None = None
    """Where protobuf's schemas come from; only with `format: protobuf`."""
    csv: Csv | None = None
    """How lines are written; only with `format: csv`."""
    debezium: Debezium | None = None
    """How changes of databases are written; only with `format: debezium`."""
    text: Text | None = None
    """What the fields of a text are; only with `format: text`."""

    @model_validator(mode="before")
    @classmethod
    def _fields_come_from_the_schema(cls, data: Any) -> Any:
        return derive_missing_fields(data)

    @model_validator(mode="after")
    def _sections_stand_with_their_format(self) -> Self:
        for name in ("avro", "protobuf", "csv", "debezium", "text"):
            if getattr(self, name) is not None and self.format != name:
                raise ValueError(f"`{name}` stands only with `format: {name}`")
        if self.format in {"avro", "protobuf"} and getattr(self, self.format) is None:
            raise ValueError(f"`format: {self.format}` needs the section `{self.format}`")
        if not self.fields:
            raise ValueError("`fields` is missing; declare the fields of an event")
        check_format_fields(self.format, self.fields, self.csv, self.text)
        return self

    @property
    def decoded_fields(self) -> dict[str, str]:
        """The declared fields, and those that the format's own identity needs besides them."""
        own = DEBEZIUM_IDENTITY if self.format == "debezium" else {}
        return {**self.fields, **{name: type_ for name, type_ in own.items() if name not in self.fields}}

    @model_validator(mode="after")
    def _kafka_or_frames(self) -> Self:
        if self.format == "frame" and self.kafka is not None:
            raise ValueError("`format: frame` takes rows from DataFrames and imports, so leave `kafka` out")
        if self.format != "frame" and self.kafka is None:
            raise ValueError(
                "`kafka` is missing; with `format: frame` a pipeline takes DataFrames and imports alone"
            )
        return self

    @property
    def topics(self) -> tuple[str, ...]:
        """Sorted; their indexes identify topics where records are read."""
        return () if self.kafka is None else tuple(sorted(self.kafka.topics))


class Identity(Section):
    fields: tuple[Name, ...] = ()
    """Fields whose values together make an event the same event; `user.id` is the field `id` of the Tuple `user`."""
    from_schema: FromSchema = False
    """Take the fields that the schemas mark as identity; the name of a schema takes those of that version."""
    headers: tuple[Name, ...] = ()
    """Headers of the record that belong to the identity; the last one counts where a name stands twice."""
    key: bool = False
    """Whether the record's key belongs to the identity."""
    schema_version: bool = False
    """Whether the version of the schema does: the same values in two versions are then two events."""
    normalize: Literal["none", "nfc"] = "none"
    """`nfc`: texts count in Unicode's normal form C, and every NaN is one value; `none`: both count by their bytes."""
    window: Seconds = Field(default=60 * 86400.0, gt=0)
    """How long at least an event is remembered, counted from when it was first seen."""
    buckets: Count = Field(default=16, ge=1, le=4096)
    """Into how many ranges the key index is cut. A power of two; `oncehouse rekey` changes it."""

    @field_validator("fields", "headers")
    @classmethod
    def _names_differ(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return refuse_repeats(names)

    @field_validator("buckets")
    @classmethod
    def _buckets_halve(cls, buckets: int) -> int:
        if buckets & (buckets - 1):
            lower = 1 << (buckets.bit_length() - 1)
            raise ValueError(f"must be a power of two, such as {lower} or {lower * 2}; not {buckets}")
        return buckets


class Route(Section):
    field: Name | None = None
    """Field of the event, or column of `shape`, that decides."""
    values: tuple[RouteValue, ...] | None = Field(default=None, min_length=1)
    """The table takes an event whose field has one of these values."""
    where: str | None = None
    """The table takes an event for which this expression is true; in place of `field` and `values`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        by_value = self.field is not None and self.values is not None
        if (self.where is None) != by_value or (self.where is not None and (self.field or self.values)):
            raise ValueError("write either `field` and `values`, or `where`")
        return self


class BatchLimits(Section):
    min_rows: Count = Field(default=10_000, ge=1)
    """A batch of this many rows may go at once; fewer wait as long as more can be expected, or for `max_wait`."""
    max_rows: Count = Field(default=1_000_000, ge=1)
    """A batch never holds more rows."""
    max_bytes: Bytes = 256 << 20
    """A batch never holds more bytes."""
    max_wait: Seconds = 2.0
    """The longest that a row waits for others before its batch goes, unless ClickHouse asks for fewer inserts."""
    min_interval: Seconds = 1.0
    """Least time between the starts of two inserts into one table."""
    sizes: Literal["adaptive", "fixed"] = "adaptive"
    """Whether size and frequency follow the load and ClickHouse's answers, within the limits above; `fixed` waits for
    `min_rows` or `max_wait`, whatever the load."""

    @model_validator(mode="after")
    def _least_is_at_most(self) -> Self:
        refuse_crossed(("min_rows", self.min_rows), ("max_rows", self.max_rows))
        return self


class Declare(Section):
    """How far the table has come, for `oncehouse etl`, which reads it as a source."""

    topic: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
    """The source's own topic in the lineage of `oncehouse etl`."""
    offsets: TableName = "ETL.OffsetsLocal"
    """Table of the scheduler's offsets: ETL.OffsetsLocal (rocksdb) or ETL.Offsets (keepermap)."""
    pos: Literal["inserted", "event"]
    """The time in the table's column `pos`: when ClickHouse took the row in (DEFAULT now64(3)), or of the event."""
    lateness: Seconds = 0.0
    """The longest time from an event's `pos` to its record in Kafka, differences of clocks included; required with
    `event`."""
    every: Annotated[Seconds, Field(gt=0)] = 2.0
    """How often it is declared, with new rows or without."""

    @model_validator(mode="after")
    def _events_have_a_lateness(self) -> Self:
        if self.pos == "event" and "lateness" not in self.model_fields_set:
            raise ValueError(
                "`lateness` is missing: with `pos: event` only you know how long an event may be on its way to Kafka"
            )
        return self


class Table(Section):
    name: TableName
    """`database.table`, or `table` in the connection's database."""
    columns: dict[Name, Name] | None = Field(default=None, min_length=1)
    """Column of the table and field of the event; all fields under their own names when left out."""
    route: Route | None = None
    """Which events the table takes; all of them when left out."""
    batch_column: Name = "_batch_id"
    """UUID column that holds the batch id: how a retry knows what has arrived."""
    id_column: Name | None = "_unique_id"
    """FixedString(16) column for the unique id; null leaves it out."""
    batch: BatchLimits | None = None
    """Limits of this table alone, in place of the pipeline's `batch`."""
    declare: Declare | None = None
    """Declare to `oncehouse etl` how far the table has come; left out: its newest row says so."""


class ClickHouse(Section):
    url: HttpUrl
    """HTTP address, such as http://localhost:8123 or https://host:8443/database."""
    user: Name = "default"
    """User who may insert into the tables and read them."""
    password: SecretStr = SecretStr("")
    """The user's password; take it from the environment or a file, as in ${env:CLICKHOUSE_PASSWORD}."""
    verify_tls: bool = True
    """Whether the server's certificate is checked when the address begins with https."""
    ca_file: str | None = None
    """Certificates to trust (PEM) instead of the system's; relative to the pipeline file."""
    connect_timeout: Seconds = Field(default=10.0, gt=0)
    """How long to wait for a connection."""
    insert_timeout: Seconds = Field(default=300.0, gt=0)
    """How long to wait for the answer to one insert before it counts as unknown."""
    insert_sessions: bool = True
    """Whether each insert needs a session of its own on the server, so that one that comes late is refused there.
    Switch it off behind a balancer that sends the requests of one client to different servers."""
    excess_rights: Literal["warn", "refuse"] = "warn"
    """What `check` and `run` do about a user that may also drop, empty or change tables, or manage users."""

    @model_validator(mode="after")
    def _certificates_are_used(self) -> Self:
        refuse_needless_ca(self.url, self.ca_file)
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; ClickHouse's own where the URL names none."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (8443 if parts.scheme == "https" else 8123)


class Epoch(Section):
    max_rows: Count = Field(default=1_500_000, ge=1)
    """An epoch reads at most about this many records."""
    max_bytes: Bytes = 1 << 30
    """An epoch reads at most about this many bytes: of large records fewer."""
    max_seconds: Annotated[Seconds, Field(gt=0)] = 30.0
    """An epoch takes at most about this long: where records are slow to read, it reads fewer."""
    # A little more than `batch.min_interval` and what a load takes to begin: then each epoch is inserted as soon as it
    # is registered. With the same interval for both, what was read waits for up to a second more.
    max_wait: Seconds = 1.25
    """How often Kafka is looked at for new records; a full epoch is followed by the next at once."""
    # A quarter of `batch.max_rows`: of larger parts too few fit one batch, and a backlog takes more inserts.
    part_rows: Count = Field(default=250_000, ge=1)
    """A part rolls over to the next at this many rows, so that a batch is always whole parts."""
    part_bytes: Bytes = 128 << 20
    """A part rolls over to the next at this many bytes."""


class Retry(Section):
    base: Seconds = Field(default=0.5, gt=0)
    """The first wait after a failed insert is up to this long; each further one up to twice as long."""
    longest: Seconds = Field(default=300.0, gt=0)
    """No wait is longer."""

    @model_validator(mode="after")
    def _base_is_at_most(self) -> Self:
        refuse_crossed(("base", self.base), ("longest", self.longest))
        return self


class Ledger(Section):
    catalog: SecretStr
    """SQLAlchemy URL: sqlite:///ledger/catalog.db (relative to the pipeline file) or postgresql+psycopg://…"""
    files: str = Field(min_length=1)
    """A folder (relative to the pipeline file), or s3://bucket/prefix."""
    max_backlog: Bytes | None = None
    """The files of events that are not in ClickHouse yet may take this much; then reading pauses until it is less."""
    min_free: Bytes | None = None
    """Reading pauses before less than this is free on a disk of the ledger; 1GB, or a tenth of a smaller disk."""

    @field_validator("catalog")
    @classmethod
    def _catalog_is_known(cls, catalog: SecretStr) -> SecretStr:
        # The URL may hold a password, so the message shows at most what stands before the colon.
        scheme, colon, _ = catalog.get_secret_value().partition("://")
        if not colon:
            raise ValueError(
                "must be a URL: sqlite:///path/to/catalog.db or postgresql+psycopg://host/database"
            )
        if scheme.partition("+")[0] == "sqlite" or scheme == "postgresql+psycopg":
            return catalog
        raise ValueError(f"{scheme[:40]!a} is no catalog; use sqlite:/// or postgresql+psycopg://")

    @field_serializer("files", when_used="json")
    def _hide_files(self, files: str) -> str:
        return hide_credentials(files)


class DeadLetters(Section):
    max_share: float | None = Field(default=0.5, ge=0, le=1)
    """Above this share of dead letters in an epoch the pipeline stops; null never stops."""
    max_waiting_share: float | None = Field(default=None, ge=0, le=1)
    """Above this share of records of unknown schemas in an epoch the pipeline stops; null never stops."""
    min_records: Count = Field(default=1000, ge=1)
    """Epochs with fewer records are not judged by their share."""


class Spark(Section):
    master: SparkMaster = "local[*]"
    """Where Spark runs: local[*], local[2], spark://host:7077, yarn, k8s://…"""
    settings: Settings = Field(default_factory=dict)
    """Spark's own settings, such as `spark.driver.memory`."""
    environment: str | None = Field(default=None, min_length=1)
    """What `oncehouse bundle` wrote, for executors to run with; relative to the pipeline file, or an address."""
    cache: Bytes | None = None
    """How much each machine may keep of files that lie in a bucket; 10 GB unless ONCEHOUSE_CACHE_BYTES is set."""

    @field_validator("settings")
    @classmethod
    def _secret_is_there(cls, settings: Mapping[str, str]) -> Mapping[str, str]:
        # Spark takes an empty secret for one, and lets everybody in who has none either.
        if not settings.get(_SPARK_SECRET, "given").strip():
            raise ValueError(
                f"{_SPARK_SECRET!r} is empty. Give the secret of the cluster, by ${{file:…}} or ${{env:…}}"
            )
        return settings

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        yield "master", self.master
        yield "settings", self._hide_settings(self.settings)
        yield "environment", self.environment
        yield "cache", self.cache

    @field_serializer("settings", when_used="json")
    def _hide_settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        return {k: HIDDEN if is_secret_setting(k) else v for k, v in settings.items()}


class Pipeline(Section):
    pipeline: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    """Name of the pipeline: lowercase letters, digits, `_` and `-`. The ledger is bound to it."""
    source: Source
    """Where events come from and what they look like."""
    identity: Identity
    """What makes two events the same, and for how long that is remembered."""
    shape: TransformSection = TransformSection()
    """What is computed, looked up and filtered between decoding and the tables."""
    tables: tuple[Table, ...] = Field(min_length=1)
    """The ClickHouse tables that events go to."""
    clickhouse: ClickHouse
    """The ClickHouse server that holds the tables."""
    ledger: Ledger
    """Where the pipeline keeps what it knows: the one thing to back up."""
    batch: BatchLimits = BatchLimits()
    """When rows are inserted, and how many at once."""
    epoch: Epoch = Epoch()
    """How much is read at once."""
    retry: Retry = Retry()
    """How long to wait between attempts at an insert."""
    dead_letters: DeadLetters = DeadLetters()
    """When records that cannot be read stop the pipeline."""
    lease: Annotated[Seconds, Field(ge=1)] = 30.0
    """After this long without a sign of life another process may take over."""
    stop_within: Annotated[Seconds, Field(ge=1)] = 25.0
    """How long a signal to stop lets what has begun finish; after that the process ends at once."""
    max_clock_difference: Seconds = 60.0
    """The clocks of this machine, the catalog and ClickHouse may be this far apart; more is refused."""
    spark: Spark = Spark()
    """How Spark is started."""

    _merging_fields: tuple[tuple[str, str], ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _sections_agree(cls, data: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        """Also looks for contradictions between the sections that are sound, so that one look shows all."""
        failure: ValidationError | None = None
        made: Self | None = None
        try:
            made = build(data)
        except ValidationError as error:
            failure = error
        fields = _entry(_entry(made or data, "source"), "fields")
        shape = _sound(TransformSection, _entry(made or data, "shape") or {})
        tables = [_sound(Table, table) for table in items(_entry(made or data, "tables"))]
        found = find_contradictions(
            fields=fields,
            computed=None if shape is None else shape.columns,
            format_=_entry(_entry(made or data, "source"), "format"),
            identity=_entry(_entry(made or data, "identity"), "fields"),
            rule=_sound(Identity, _entry(made or data, "identity")),
            new_fields=_entry(_entry(made or data, "source"), "new_fields"),
            matched=_matched(_entry(made or data, "source")),
            tables=tables,
        )
        types = sound_types(fields) if made is None else made.source.decoded_fields
        if shape is not None and types is not None:
            found += compile_transform(types, shape, tables).problems
        if made is not None and not found:
            return made
        raise combine_problems(failure, found, title=cls.__name__)

    @property
    def expressions(self) -> Expressions:
        """What the expressions come to; raises when fields that were learnt since do not go with them."""
        compiled = compile_transform(self.source.decoded_fields, self.shape, self.tables)
        if compiled.problems:
            raise ConfigurationError(format_problems(compiled.problems, where=self.pipeline))
        return compiled.expressions

    @property
    def columns(self) -> dict[str, str]:
        """All that a table may name, with its type: fields of the event and what `shape` adds."""
        return {**self.source.fields, **{name: column.type for name, column in self.shape.columns.items()}}

    @property
    def merging_fields(self) -> tuple[tuple[str, str], ...]:
        """(table, field): fields that decide which rows a table merges; none before the tables were looked at."""
        return self._merging_fields

    def with_merging_fields(self, found: Iterable[tuple[str, str]]) -> Self:
        known = self.model_copy()
        known._merging_fields = tuple(found)  # noqa: SLF001 - it is this class's own
        return known

    def limits(self, table: str) -> BatchLimits:
        for declared in self.tables:
            if declared.name == table:
                return declared.batch or self.batch
        return self.batch


def _entry(holder: Any, key: str) -> Any:
    return holder.get(key) if isinstance(holder, Mapping) else getattr(holder, key, None)


def _matched(source: Any) -> dict[Path, Any]:
    """Where declared fields are named to say how they are found, with what stands there."""
    return {
        ("protobuf", "numbers"): _entry(_entry(source, "protobuf"), "numbers"),
        ("avro", "aliases"): _entry(_entry(source, "avro"), "aliases"),
        ("optional_fields",): _entry(source, "optional_fields"),
    }


def _sound(section: type[SectionT], value: Any) -> SectionT | None:
    try:
        return section.model_validate(value)
    except ValidationError:
        return None
