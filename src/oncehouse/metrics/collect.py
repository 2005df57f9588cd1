"""Samples of the metrics in `definitions.py` from the views of the monitor.

Pure, except `collect`, which reads the monitor. A part that cannot be read has no samples and sets `oncehouse_answers`
to 0, so that a scrape never fails because one server is unavailable.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from oncehouse import __version__
from oncehouse.errors import OncehouseError
from oncehouse.ledger.models import RequestKind
from oncehouse.metrics import definitions
from oncehouse.metrics.definitions import Metric
from oncehouse.monitoring.unavailable import NoAnswer

if TYPE_CHECKING:
    from oncehouse.messaging.consumer.group_lag import GroupStatus
    from oncehouse.messaging.outbox.status import OutboxStatus
    from oncehouse.monitoring.etl import EtlView
    from oncehouse.monitoring.monitor import HealthView, Inboxes, Monitor
    from oncehouse.monitoring.overview import Overview
    from oncehouse.monitoring.pipelines import PipelineActivity
    from oncehouse.pipeline.progress import StreamProgress
    from oncehouse.sync.status import SyncStatus

View = TypeVar("View")

_FATES = ("new", "duplicate", "dead_letter", "skipped", "waiting")
_INBOX_STATES = ("waiting", "failing", "parked", "done", "dropped")


@dataclass(frozen=True, slots=True)
class MetricSample:
    metric: Metric
    labels: tuple[str, ...]
    value: float


def collect(monitor: Monitor) -> Iterator[MetricSample]:
    """Everything, as it is now."""
    started = time.monotonic()
    yield _sample(definitions.BUILD, 1, __version__)
    for name in monitor.pipelines:
        yield from _read_part("pipeline", name, partial(monitor.activity, name), activity_samples)
    targets = monitor.targets
    if targets.etl is not None:
        yield from _read_part("etl", targets.etl.name, monitor.etl, etl_samples)
    if targets.messaging is not None:
        file = targets.messaging.name
        yield from _read_part("outbox", file, monitor.outbox, outbox_samples)
        yield from _read_part("inbox", file, monitor.inboxes, inbox_samples)
    if targets.groups:
        yield from _read_part("groups", ",".join(targets.groups), monitor.groups, group_samples)
    if targets.health_files:
        yield from _read_part("health", "", monitor.health, health_samples)
    if targets.modules:
        yield from _read_part("sync", ",".join(targets.modules), monitor.syncs, sync_samples)
    yield _sample(definitions.SCRAPE_SECONDS, time.monotonic() - started)


def _read_part(
    part: str,
    name: str,
    read: Callable[[], View | NoAnswer],
    make_samples: Callable[[View], Iterable[MetricSample]],
) -> Iterator[MetricSample]:
    try:
        found = read()
    except OncehouseError:
        yield _sample(definitions.ANSWERS, 0, part, name)
        return
    if isinstance(found, NoAnswer):
        yield _sample(definitions.ANSWERS, 0, part, name)
        return
    yield _sample(definitions.ANSWERS, 1, part, name)
    yield from make_samples(found)


def _sample(metric: Metric, value: float, *labels: object) -> MetricSample:
    return MetricSample(metric, tuple(map(str, labels)), float(value))


def activity_samples(activity: PipelineActivity) -> Iterator[MetricSample]:
    overview, name = activity.overview, activity.overview.pipeline
    yield from _epoch_samples(activity)
    yield from _load_samples(activity)
    yield from _request_samples(overview)
    if overview.lag is not None or activity.lag_trouble is not None:
        yield _sample(definitions.ANSWERS, activity.lag_trouble is None, "kafka", name)
    for place in overview.positions:
        yield _sample(definitions.POSITION, place.next_offset, name, place.topic, place.partition)
        if place.lag is not None:
            yield _sample(definitions.LAG, place.lag, name, place.topic, place.partition)
    yield _sample(definitions.INDEX_KEYS, overview.key_index.keys, name)
    yield _sample(definitions.INDEX_SEGMENTS, overview.key_index.segments, name)
    if overview.key_index.first_seen_from is not None:
        yield _sample(definitions.INDEX_OLDEST, overview.key_index.first_seen_from, name)
    for lease in overview.leases:
        yield _sample(definitions.LEASE_HELD, lease.ends_in_seconds > 0, name, lease.stage)
        yield _sample(definitions.LEASE_TOKEN, lease.token, name, lease.stage)
        yield _sample(
            definitions.PAUSED, lease.pause is not None and lease.ends_in_seconds > 0, name, lease.stage
        )


def _epoch_samples(activity: PipelineActivity) -> Iterator[MetricSample]:
    name = activity.overview.pipeline
    for totals in activity.overview.epochs:
        yield _sample(definitions.EPOCHS, totals.epochs, name, totals.kind)
        for fate in _FATES:
            yield _sample(definitions.RECORDS, getattr(totals.counts, fate), name, totals.kind, fate)
    yield _sample(definitions.CONFLICTS, activity.overview.conflicts, name)
    yield _sample(definitions.READ_RATE, activity.pace.read_per_second, name)
    if (newest := activity.newest_epoch) is not None:
        yield _sample(definitions.LAST_EPOCH_TIME, newest.registered_at, name)
        yield _sample(
            definitions.LAST_EPOCH_SECONDS, max(0.0, newest.registered_at - newest.started_at), name
        )


def _load_samples(activity: PipelineActivity) -> Iterator[MetricSample]:
    overview, name = activity.overview, activity.overview.pipeline
    for table, rows in overview.rows_in_clickhouse.items():
        yield _sample(definitions.ROWS_LOADED, rows, name, table)
    for found in overview.batches:
        yield _sample(definitions.BATCHES, found.batches, name, found.table, found.status)
        yield _sample(definitions.BATCH_ROWS, found.rows, name, found.table, found.status)
    for parts in overview.open_parts:
        yield _sample(definitions.OPEN_PARTS, parts.parts, name, parts.table)
        yield _sample(definitions.OPEN_ROWS, parts.rows, name, parts.table)
    yield _sample(definitions.OLDEST_WAITING, overview.oldest_waiting_seconds or 0.0, name)
    yield _sample(definitions.LOAD_RATE, activity.pace.loaded_per_second, name)
    for table, seconds in activity.pace.insert_seconds.items():
        yield _sample(definitions.INSERT_SECONDS, seconds, name, table)
    yield _sample(definitions.BACKLOG, activity.storage.backlog_bytes, name)
    if activity.max_backlog_bytes is not None:
        yield _sample(definitions.BACKLOG_LIMIT, activity.max_backlog_bytes, name)
    for view in activity.disks:
        holds = view.disk.holds.partition(" under ")[0]
        yield _sample(definitions.DISK_FREE, view.disk.free_bytes, name, holds)
        yield _sample(definitions.DISK_KEPT_FREE, view.kept_free_bytes, name, holds)


def _request_samples(overview: Overview) -> Iterator[MetricSample]:
    name = overview.pipeline
    for reason, count in overview.dead_letters.items():
        yield _sample(definitions.DEAD_LETTERS, count, name, reason)
    for schema, count in overview.waiting.items():
        yield _sample(definitions.WAITING_FOR_SCHEMA, count, name, schema)
    if overview.waiting_others:
        # No schema has an empty name, and a sum over all of them stays right.
        yield _sample(definitions.WAITING_FOR_SCHEMA, overview.waiting_others, name, "")
    waiting = Counter(request.kind for request in overview.requests if request.done_at is None)
    refused = Counter(request.kind for request in overview.requests if request.is_refused)
    # Of every kind from the beginning on: Prometheus sees no increase of a series that is born at 1.
    for kind in RequestKind:
        yield _sample(definitions.REQUESTS_OPEN, waiting[kind], name, kind)
        yield _sample(definitions.REQUESTS_REFUSED, refused[kind], name, kind)


def stream_samples(pipeline: str, stream: StreamProgress) -> Iterator[MetricSample]:
    yield _sample(definitions.SPARK_BATCH, stream.batch, pipeline)
    yield _sample(definitions.SPARK_RECORDS, stream.records, pipeline)
    yield _sample(definitions.SPARK_INPUT_RATE, stream.input_per_second, pipeline)
    yield _sample(definitions.SPARK_RATE, stream.processed_per_second, pipeline)
    for phase, seconds in stream.phase_seconds.items():
        yield _sample(definitions.SPARK_SECONDS, seconds, pipeline, phase)


def etl_samples(view: EtlView) -> Iterator[MetricSample]:
    for one in view.topics:
        yield _sample(definitions.ETL_POSITION, one.last.time_ms / 1000, one.topic)
        yield _sample(definitions.ETL_FAILURES, one.failures, one.topic)
        yield _sample(definitions.ETL_PAUSED, one.decision == "paused", one.topic)
        yield _sample(definitions.ETL_HELD, bool(one.hostid), one.topic)
        yield _sample(definitions.ETL_LATE_ROWS, one.late_rows, one.topic)
        yield _sample(definitions.ETL_GAP_ROWS, sum(gap.rows for gap in one.gaps), one.topic)
        for source, seconds in one.lag_seconds.items():
            if seconds is not None:
                yield _sample(definitions.ETL_LAG, seconds, one.topic, source)
        for source, rows in one.rows_ahead.items():
            yield _sample(definitions.ETL_AHEAD_ROWS, rows, one.topic, source)


def outbox_samples(found: OutboxStatus) -> Iterator[MetricSample]:
    yield _sample(definitions.OUTBOX_WAITING, found.waiting, found.table)
    yield _sample(definitions.OUTBOX_OLDEST, found.oldest_seconds or 0.0, found.table)
    yield _sample(definitions.OUTBOX_FAILING, found.failing, found.table)
    yield _sample(definitions.OUTBOX_PARKED, found.parked, found.table)
    yield _sample(definitions.OUTBOX_BEHIND, found.behind, found.table)
    yield _sample(definitions.OUTBOX_RELAYS, sum(relay.live for relay in found.relays), found.table)
    yield _sample(definitions.OUTBOX_FREE_BUCKETS, found.free_buckets, found.table)


def inbox_samples(view: Inboxes) -> Iterator[MetricSample]:
    for one in view.inboxes:
        for state in _INBOX_STATES:
            yield _sample(definitions.INBOX_MESSAGES, getattr(one, state), one.inbox, state)
        yield _sample(definitions.INBOX_OLDEST, one.oldest_seconds or 0.0, one.inbox)
        yield _sample(definitions.INBOX_WORKERS, len(one.workers), one.inbox)
    for consumer in view.consumers:
        yield _sample(definitions.INBOX_IDS, consumer.ids, consumer.consumer)


def group_samples(groups: Iterable[GroupStatus]) -> Iterator[MetricSample]:
    for group in groups:
        yield _sample(definitions.CONSUMER_MEMBERS, group.members, group.group)
        for place in group.partitions:
            yield _sample(definitions.CONSUMER_LAG, place.lag, group.group, place.topic, place.partition)


def health_samples(views: Iterable[HealthView]) -> Iterator[MetricSample]:
    for view in views:
        healthy = not isinstance(view.health, NoAnswer) and view.health.healthy
        yield _sample(definitions.CONSUMER_HEALTHY, healthy, view.file)


def sync_samples(syncs: Iterable[SyncStatus]) -> Iterator[MetricSample]:
    for one in syncs:
        if one.pipeline_file is not None:
            continue  # by CDC: its pipeline has the metrics
        if one.waiting is not None:
            yield _sample(definitions.SYNC_WAITING, one.waiting, one.sync)
            yield _sample(definitions.SYNC_LAG, one.lag_seconds or 0.0, one.sync)
        yield _sample(definitions.SYNC_ROWS, one.rows_synced or 0, one.sync)
        yield _sample(definitions.SYNC_FAILURES, one.failures, one.sync)
        yield _sample(definitions.SYNC_RUNNING, one.running, one.sync)
        if one.backfilled is not None:
            yield _sample(definitions.SYNC_BACKFILLED, one.backfilled, one.sync)
