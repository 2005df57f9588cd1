"""The catalog's tables as they are today; how older ones come to be so is `migrations.py`.

Only plain types and single-table statements, so that a further SQL dialect needs no change here. Every row
belongs to a pipeline; ids are made by the writer, never by the database.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    text,
)

VERSION = 7

metadata = MetaData()

COUNTS = (
    "rows_read",
    "rows_new",
    "rows_duplicate",
    "rows_dead_letter",
    "rows_skipped",
    "rows_waiting",
    "conflicts",
)


def _counts() -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in COUNTS]


def _file(prefix: str) -> list[Column[Any]]:
    """A file, or from `row` on a range of its rows."""
    return [
        Column(f"{prefix}_path", String(255), nullable=False),
        Column(f"{prefix}_bytes", BigInteger, nullable=False),
        Column(f"{prefix}_checksum", String(80), nullable=False),
        Column(f"{prefix}_row", BigInteger, nullable=False),
    ]


ledger_version = Table(
    "oncehouse_ledger", metadata, Column("name", String(32), primary_key=True), Column("version", Integer)
)

# Which oncehouse brought the catalog to which version.
upgrades = Table(
    "oncehouse_upgrades",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("oncehouse", String(64), nullable=False),
    Column("upgraded_at", Float(53), nullable=False),
)

pipelines = Table(
    "oncehouse_pipelines",
    metadata,
    Column("pipeline", String(64), primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("buckets", Integer, nullable=False),
    Column("created_at", Float(53), nullable=False),
    # What the pipeline file says of the identity, so that a process with a changed file can go on under this rule
    # while another one is prepared. Null: written by an oncehouse before version 3.
    Column("rule", Text),
)

leases = Table(
    "oncehouse_leases",
    metadata,
    Column("pipeline", String(64)),
    Column("stage", String(16)),
    Column("token", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", Float(53), nullable=False),
    # Names the last write made under this lease: how an unknown commit is looked up.
    Column("last_write", String(36)),
    # What the holder waits for before it goes on; null while it works.
    Column("pause", Text),
    # Fenced writes of the stage, under all its terms: a catalog that has lost some is behind what others know of it.
    # Null: none since version 6.
    Column("writes", BigInteger),
    PrimaryKeyConstraint("pipeline", "stage"),
)

positions = Table(
    "oncehouse_positions",
    metadata,
    Column("pipeline", String(64)),
    Column("topic", String(255)),
    Column("partition_id", Integer),
    Column("topic_id", String(64), nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline", "topic", "partition_id"),
)

epochs = Table(
    "oncehouse_epochs",
    metadata,
    Column("pipeline", String(64)),
    Column("epoch", BigInteger),
    Column("kind", String(16), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("registered_at", Float(53), nullable=False),
    *_counts(),
    PrimaryKeyConstraint("pipeline", "epoch"),
)

ranges = Table(
    "oncehouse_ranges",
    metadata,
    Column("pipeline", String(64)),
    Column("topic", String(255)),
    Column("partition_id", Integer),
    Column("start_offset", BigInteger),
    Column("end_offset", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    # Kafka's leader epoch of what stands before the end; null where it is not known.
    Column("leader_epoch", Integer),
    PrimaryKeyConstraint("pipeline", "topic", "partition_id", "start_offset"),
)

# Who may settle batches under a query's name: Spark's own query, an import, or a plain caller.
queries = Table(
    "oncehouse_queries",
    metadata,
    Column("pipeline", String(64)),
    Column("query", String(255)),
    Column("origin", String(255), nullable=False),
    Column("created_at", Float(53), nullable=False),
    PrimaryKeyConstraint("pipeline", "query"),
)

# Batches of queries that are settled, from the first to the last; several only where history was rolled up.
query_batches = Table(
    "oncehouse_query_batches",
    metadata,
    Column("pipeline", String(64)),
    Column("query", String(255)),
    Column("first_batch", BigInteger),
    Column("last_batch", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline", "query", "first_batch"),
)

# Files of an import as they were when it first saw them.
import_files = Table(
    "oncehouse_import_files",
    metadata,
    Column("pipeline", String(64)),
    Column("query", String(255)),
    Column("number", Integer),
    Column("path", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("modified_ns", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline", "query", "number"),
)

# Which piece of which file belongs to which batch of an import.
import_pieces = Table(
    "oncehouse_import_pieces",
    metadata,
    Column("pipeline", String(64)),
    Column("query", String(255)),
    Column("batch", BigInteger),
    Column("piece", Integer),
    Column("number", Integer, nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline", "query", "batch", "piece"),
)

key_files = Table(
    "oncehouse_key_files",
    metadata,
    Column("pipeline", String(64)),
    Column("key_file", String(64)),
    Column("epoch", BigInteger, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("registered_at", Float(53), nullable=False),
    *_file("keys"),
    *_file("raw"),
    PrimaryKeyConstraint("pipeline", "key_file"),
    Index("oncehouse_key_files_epoch", "pipeline", "epoch"),
)

parts = Table(
    "oncehouse_parts",
    metadata,
    Column("pipeline", String(64)),
    Column("part", String(64)),
    Column("epoch", BigInteger, nullable=False),
    Column("table_name", String(255), nullable=False),
    Column("key_file", String(64), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("rows_total", BigInteger, nullable=False),
    Column("rows_live", BigInteger, nullable=False),
    Column("live_bytes", BigInteger, nullable=False),
    Column("shape", String(16), nullable=False),
    Column("registered_at", Float(53), nullable=False),
    *_file("file"),
    Column("batch_id", String(36)),
    Column("batch_position", Integer),
    PrimaryKeyConstraint("pipeline", "part"),
    Index("oncehouse_parts_batch", "pipeline", "batch_id"),
    Index("oncehouse_parts_epoch", "pipeline", "epoch"),
)

duplicate_files = Table(
    "oncehouse_duplicate_files",
    metadata,
    Column("pipeline", String(64)),
    Column("epoch", BigInteger),
    *_file("file"),
    Column("rows_total", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline", "epoch", "file_path", "file_row"),
)

dead_letter_files = Table(
    "oncehouse_dead_letter_files",
    metadata,
    Column("pipeline", String(64)),
    Column("dead_letter_file", String(64)),
    Column("kind", String(16), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("rows_total", BigInteger, nullable=False),
    Column("reasons", Text, nullable=False),
    Column("registered_at", Float(53), nullable=False),
    *_file("file"),
    # The epoch that tried these dead letters again; what failed again stands in that epoch's own file.
    Column("tried_in_epoch", BigInteger),
    PrimaryKeyConstraint("pipeline", "dead_letter_file"),
    # Without the reasons: a text of any length fits into no index of PostgreSQL. Only of the open ones, because
    # PostgreSQL takes an index with a column that has to be null for none in the order of the next.
    Index(
        "oncehouse_dead_letter_files_open",
        "pipeline",
        "kind",
        "epoch",
        sqlite_where=text("tried_in_epoch IS NULL"),
        postgresql_where=text("tried_in_epoch IS NULL"),
    ),
)

schemas = Table(
    "oncehouse_schemas",
    metadata,
    Column("pipeline", String(64)),
    Column("schema_name", String(255)),
    Column("format", String(16), nullable=False),
    Column("definition", Text, nullable=False),
    Column("first_seen_at", Float(53), nullable=False),
    PrimaryKeyConstraint("pipeline", "schema_name"),
)

# Fields that the pipeline file does not declare, or declares otherwise, and their types from then on.
fields = Table(
    "oncehouse_fields",
    metadata,
    Column("pipeline", String(64)),
    Column("field", String(255)),
    # Null: the field was seen and is left out.
    Column("type", Text),
    # The type in the pipeline file that this one takes the place of; null: none was declared.
    Column("instead_of", Text),
    Column("position", Integer, nullable=False),
    Column("learned_at", Float(53), nullable=False),
    PrimaryKeyConstraint("pipeline", "field"),
)

segments = Table(
    "oncehouse_segments",
    metadata,
    Column("pipeline", String(64)),
    Column("segment", String(64)),
    Column("bucket_from", Integer, nullable=False),
    Column("bucket_to", Integer, nullable=False),
    Column("keys_total", BigInteger, nullable=False),
    Column("first_seen_from", Float(53), nullable=False),
    Column("first_seen_to", Float(53), nullable=False),
    *_file("file"),
    # Set when a merge or the window has taken its place; the file outlives the epochs that may read it.
    Column("replaced_at", Float(53)),
    Column("replaced_after_epoch", BigInteger),
    PrimaryKeyConstraint("pipeline", "segment"),
)

batches = Table(
    "oncehouse_batches",
    metadata,
    Column("pipeline", String(64)),
    Column("batch_id", String(36)),
    Column("table_name", String(255), nullable=False),
    Column("status", String(16), nullable=False),
    Column("rows_total", BigInteger, nullable=False),
    Column("live_bytes", BigInteger, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", Float(53), nullable=False),
    Column("reason", Text),
    Column("loaded_at", Float(53)),
    PrimaryKeyConstraint("pipeline", "batch_id"),
    Index("oncehouse_batches_status", "pipeline", "status"),
    Index("oncehouse_batches_sequence", "pipeline", "sequence"),
)

attempts = Table(
    "oncehouse_attempts",
    metadata,
    Column("pipeline", String(64)),
    Column("batch_id", String(36)),
    Column("attempt", Integer),
    Column("query_id", String(64), nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("finished_at", Float(53)),
    Column("outcome", String(16)),
    Column("detail", Text),
    Column("block_count", String(64)),
    PrimaryKeyConstraint("pipeline", "batch_id", "attempt"),
)

requests = Table(
    "oncehouse_requests",
    metadata,
    Column("pipeline", String(64)),
    Column("request", BigInteger),
    Column("kind", String(32), nullable=False),
    Column("arguments", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("done_at", Float(53)),
    Column("result", Text),
    PrimaryKeyConstraint("pipeline", "request"),
)

# While another identity rule is prepared: key files whose ids were made again, and where these lie (null: they stay).
rekeyed_files = Table(
    "oncehouse_rekeyed_files",
    metadata,
    Column("pipeline", String(64)),
    Column("key_file", String(64)),
    Column("request", BigInteger, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("keys_path", String(255)),
    Column("keys_bytes", BigInteger),
    Column("keys_checksum", String(80)),
    Column("keys_row", BigInteger),
    PrimaryKeyConstraint("pipeline", "key_file"),
)

# The segments of the key index that it will then have.
rekeyed_segments = Table(
    "oncehouse_rekeyed_segments",
    metadata,
    Column("pipeline", String(64)),
    Column("segment", String(64)),
    Column("request", BigInteger, nullable=False),
    Column("bucket_from", Integer, nullable=False),
    Column("bucket_to", Integer, nullable=False),
    Column("keys_total", BigInteger, nullable=False),
    Column("first_seen_from", Float(53), nullable=False),
    Column("first_seen_to", Float(53), nullable=False),
    *_file("file"),
    PrimaryKeyConstraint("pipeline", "segment"),
)

# Files that nothing names any more, kept a while for those who may still be reading them.
garbage = Table(
    "oncehouse_garbage",
    metadata,
    Column("pipeline", String(64)),
    Column("file_path", String(255)),
    Column("since", Float(53), nullable=False),
    PrimaryKeyConstraint("pipeline", "file_path"),
)

# Epochs past the window, added up by the hour in which they were registered.
epoch_hours = Table(
    "oncehouse_epoch_hours",
    metadata,
    Column("pipeline", String(64)),
    Column("hour", BigInteger),
    Column("kind", String(16)),
    Column("epochs", BigInteger, nullable=False),
    *_counts(),
    PrimaryKeyConstraint("pipeline", "hour", "kind"),
)

# Batches past the window, added up by the hour in which they were loaded.
batch_hours = Table(
    "oncehouse_batch_hours",
    metadata,
    Column("pipeline", String(64)),
    Column("table_name", String(255)),
    Column("hour", BigInteger),
    Column("batches", BigInteger, nullable=False),
    Column("rows_total", BigInteger, nullable=False),
    PrimaryKeyConstraint("pipeline", "table_name", "hour"),
)
