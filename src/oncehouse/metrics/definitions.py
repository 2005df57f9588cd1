"""Every metric of oncehouse, in one list: name, kind, labels, and what it says.

Names keep their meaning for as long as they stand here. A counter only grows; what can shrink is a gauge. Times are
seconds, sizes bytes, moments seconds since 1970. The reference page is written from this list (`write_reference`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    kind: Kind
    labels: tuple[str, ...]
    says: str


def _counter(name: str, labels: str, says: str) -> Metric:
    return Metric(name=f"oncehouse_{name}_total", kind=Kind.COUNTER, labels=tuple(labels.split()), says=says)


def _gauge(name: str, labels: str, says: str) -> Metric:
    return Metric(name=f"oncehouse_{name}", kind=Kind.GAUGE, labels=tuple(labels.split()), says=says)


# The process that exposes the metrics, and what it can read.
BUILD = _gauge("build_info", "version", "1; its label is the version of oncehouse that exposes the metrics")
ANSWERS = _gauge(
    "answers",
    "part name",
    "1 while it can be read, else 0. Parts: `pipeline`, `kafka` (the lag of a pipeline), `etl`, `outbox`, "
    "`inbox`, `groups`, `health`, `sync`",
)
SCRAPE_SECONDS = _gauge("scrape_seconds", "", "how long it took to read everything")

# What epochs settled. Every record read is counted once.
RECORDS = _counter(
    "records",
    "pipeline kind fate",
    "records by what became of them: `new`, `duplicate`, `dead_letter`, `skipped`, `waiting`. `kind` is where the "
    "epoch came from: `kafka` and `frame` from outside, `replay`, `refill` and `waiting` from the ledger itself",
)
CONFLICTS = _counter(
    "conflicts", "pipeline", "duplicates whose payload differs from the event that came first"
)
EPOCHS = _counter("epochs", "pipeline kind", "epochs that are registered")
LAST_EPOCH_TIME = _gauge("last_epoch_timestamp_seconds", "pipeline", "when the newest epoch was registered")
LAST_EPOCH_SECONDS = _gauge("last_epoch_seconds", "pipeline", "how long the newest epoch took")
READ_RATE = _gauge(
    "read_records_per_second", "pipeline", "records from outside that were settled, over the last minute"
)

# How far Kafka is ahead.
LAG = _gauge("lag_records", "pipeline topic partition", "records in Kafka that no epoch has settled")
POSITION = _gauge("next_offset", "pipeline topic partition", "where the next epoch begins")

# The way into ClickHouse.
ROWS_LOADED = _gauge(
    "rows_in_clickhouse",
    "pipeline table",
    "rows of batches that ClickHouse has confirmed; fewer while a refill replaces them",
)
LOAD_RATE = _gauge(
    "loaded_rows_per_second", "pipeline", "rows that ClickHouse confirmed, over the last minute"
)
BATCHES = _gauge("batches", "pipeline table status", "batches by status, those past the window left out")
BATCH_ROWS = _gauge("batch_rows", "pipeline table status", "rows of these batches")
OPEN_PARTS = _gauge("open_parts", "pipeline table", "parts that wait for a batch")
OPEN_ROWS = _gauge("open_rows", "pipeline table", "rows of these parts")
OLDEST_WAITING = _gauge(
    "oldest_waiting_seconds",
    "pipeline",
    "how long the oldest row that is not in ClickHouse has waited; 0: none",
)
INSERT_SECONDS = _gauge(
    "insert_seconds", "pipeline table", "how long inserts took, the mean of the last ten minutes"
)

# What needs a person, or a schema.
DEAD_LETTERS = _gauge("dead_letters", "pipeline reason", "dead letters that were not tried again")
WAITING_FOR_SCHEMA = _gauge(
    "waiting_for_schema",
    "pipeline schema",
    "records that wait for a schema: the 20 most frequent ones; `schema` is empty for all others together",
)
REQUESTS_OPEN = _gauge("requests_open", "pipeline kind", "requests not performed yet")
REQUESTS_REFUSED = _counter("requests_refused", "pipeline kind", "requests that could not be met")

# The key index.
INDEX_KEYS = _gauge("index_keys", "pipeline", "keys in the index")
INDEX_SEGMENTS = _gauge("index_segments", "pipeline", "segments of the index")
INDEX_OLDEST = _gauge(
    "index_oldest_timestamp_seconds",
    "pipeline",
    "when the oldest key was first seen; absent while there is none",
)

# Disk.
BACKLOG = _gauge("backlog_bytes", "pipeline", "files of events that are not in ClickHouse yet")
BACKLOG_LIMIT = _gauge("backlog_limit_bytes", "pipeline", "`ledger.max_backlog`; absent without one")
DISK_FREE = _gauge("disk_free_bytes", "pipeline holds", "free space on the disk that holds the ledger")
DISK_KEPT_FREE = _gauge(
    "disk_kept_free_bytes",
    "pipeline holds",
    "reading pauses before less than this is free (`ledger.min_free`)",
)

# Who runs it.
LEASE_HELD = _gauge("lease_held", "pipeline stage", "1 while a process runs the stage")
LEASE_TOKEN = _gauge(
    "lease_token", "pipeline stage", "the fencing token, which grows with each start and takeover"
)
PAUSED = _gauge(
    "paused",
    "pipeline stage",
    "1 while the stage is paused, by backpressure or because its server does not answer",
)

# What Spark says of its stream; only in `oncehouse run --metrics`.
SPARK_BATCH = _gauge(
    "spark_micro_batch", "pipeline", "the newest micro-batch, from 0 with each start of the stream"
)
SPARK_RECORDS = _gauge("spark_micro_batch_records", "pipeline", "records of the newest micro-batch")
SPARK_INPUT_RATE = _gauge(
    "spark_input_records_per_second", "pipeline", "records that arrived, as Spark measures them"
)
SPARK_RATE = _gauge("spark_processed_records_per_second", "pipeline", "records that Spark has processed")
SPARK_SECONDS = _gauge(
    "spark_phase_seconds",
    "pipeline phase",
    "how long each phase of the newest micro-batch took, under Spark's names; `triggerExecution` is the whole",
)

# The scheduler: Fact tables from Stage tables.
ETL_LAG = _gauge(
    "etl_lag_seconds",
    "topic source",
    "how far the newest row of a source is ahead; absent for a source without rows",
)
ETL_POSITION = _gauge(
    "etl_position_timestamp_seconds", "topic", "up to which time of its main source it is built"
)
ETL_FAILURES = _gauge("etl_failures", "topic", "how often in a row its step has failed")
ETL_PAUSED = _gauge("etl_paused", "topic", "1 while the topic is paused")
ETL_HELD = _gauge("etl_held", "topic", "1 while a host works on it")
ETL_LATE_ROWS = _gauge("etl_late_rows", "topic", "rows that came late and are not built")
ETL_GAP_ROWS = _gauge("etl_gap_rows", "topic", "rows of its main source in gaps that were never built")
ETL_AHEAD_ROWS = _gauge(
    "etl_ahead_rows", "topic source", "rows too far in the future to be taken for the source's time"
)

# Outbox and relay.
OUTBOX_WAITING = _gauge("outbox_waiting", "table", "messages that wait for a relay")
OUTBOX_OLDEST = _gauge("outbox_oldest_seconds", "table", "how long the oldest of them has waited; 0: none")
OUTBOX_FAILING = _gauge("outbox_failing", "table", "of those: failed before")
OUTBOX_PARKED = _gauge("outbox_parked", "table", "messages that Kafka refused")
OUTBOX_BEHIND = _gauge("outbox_behind", "table", "messages that wait behind a parked one of their key")
OUTBOX_RELAYS = _gauge("outbox_relays", "table", "relays that are alive")
OUTBOX_FREE_BUCKETS = _gauge("outbox_free_buckets", "table", "buckets that no relay works on")

# Inboxes.
INBOX_MESSAGES = _gauge(
    "inbox_messages",
    "inbox state",
    "messages of a stored inbox: `waiting`, `failing` (of those), `parked`, `done`, `dropped`",
)
INBOX_OLDEST = _gauge(
    "inbox_oldest_seconds", "inbox", "how long the oldest waiting message has waited; 0: none"
)
INBOX_WORKERS = _gauge("inbox_workers", "inbox", "workers that are alive")
INBOX_IDS = _gauge("inbox_ids", "consumer", "ids that `once` remembers for a consumer")

# Consumer groups, as Kafka and health files report them.
CONSUMER_LAG = _gauge(
    "consumer_lag_records", "group topic partition", "records behind the group's committed offset"
)
CONSUMER_MEMBERS = _gauge("consumer_members", "group", "consumers in the group")
CONSUMER_HEALTHY = _gauge(
    "consumer_healthy", "file", "1 while the health file is fresh and says that all is well"
)

# Model sync.
SYNC_WAITING = _gauge("sync_waiting", "sync", "operations that no round has synced yet")
SYNC_LAG = _gauge("sync_lag_seconds", "sync", "how long the oldest of them has waited; 0: none")
SYNC_ROWS = _counter("sync_rows", "sync", "rows that rounds have sent")
SYNC_FAILURES = _gauge("sync_failures", "sync", "failures since the last success")
SYNC_RUNNING = _gauge("sync_running", "sync", "1 while a process holds its lease")
SYNC_BACKFILLED = _gauge(
    "sync_backfilled_ratio", "sync", "the share of keys that an unfinished backfill has processed"
)

ALL: tuple[Metric, ...] = tuple(found for found in list(globals().values()) if isinstance(found, Metric))
BY_NAME = {metric.name: metric for metric in ALL}


def write_reference() -> str:
    """The page docs/reference/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Written from `src/oncehouse/metrics/definitions.py`, the one list of names. How to get at them:",
        "[Metrics](../metrics.md).",
        "",
        "| metric | kind | labels | what it says |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels) or '-'} "
        f"| {metric.says} |"
        for metric in ALL
    ]
    return "\n".join(lines) + "\n"
