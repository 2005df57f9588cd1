"""Everything that can be known to be wrong before any data moves, as findings or as errors.

Nothing is created or changed on Kafka or ClickHouse here. `check` shows the findings, `run` refuses to start
when one of them is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.preflight.check import Finding, Level, inspect, needs_of
from oncehouse.clickhouse.preflight.partition_spread import check_spread, count_partitions
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.column_types.parser import parse_type
from oncehouse.errors import ConfigurationError, OncehouseError, TransientError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.stats.backlog import sum_kept
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.checks.clock_skew import check_clocks, read_clocks
from oncehouse.pipeline.checks.disk_forecast import check_disk_forecast
from oncehouse.pipeline.checks.record_sample import RecordSample, measure_growth, read_sample
from oncehouse.pipeline.checks.stale_catalog import require_newest
from oncehouse.pipeline.checks.topic_durability import check_topic_durability
from oncehouse.pipeline.formats.protobuf.schema_sources import require_readable
from oncehouse.pipeline.ingest.backpressure import StorageState, read_disks, read_storage_state
from oncehouse.pipeline.ingest.kafka_log import KafkaLog
from oncehouse.pipeline.ingest.kafka_retention import check_topic_retention
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics, TopicFacts, read_facts
from oncehouse.pipeline.kafka_reader.access import make_access
from oncehouse.pipeline.schema.discovery import declared_schemas, known_schemas
from oncehouse.pipeline.schema.evolution import current
from oncehouse.pipeline.schema.identity_guard import check_rule
from oncehouse.pipeline.schema.required_fields import check_versions
from oncehouse.pipeline.schema.table_merge_fields import with_tables
from oncehouse.pipeline.transform.plan_builder import check_transform

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline


def open_catalog(pipeline: Pipeline, *, report: Callable[[str], None] | None = None) -> Catalog:
    return Catalog(pipeline.ledger.catalog.get_secret_value(), pipeline.pipeline, report=report)


def inspect_tables(pipeline: Pipeline) -> tuple[Finding, ...]:
    client = connect(pipeline.clickhouse)
    found = [finding for table in pipeline.tables for finding in inspect(client, needs_of(pipeline, table))]
    # Findings about the server repeat with each table.
    return tuple(dict.fromkeys(found))


def inspect_source(topics: KafkaTopics) -> tuple[Finding, ...]:
    """Whether Kafka keeps records through the longest outage that is allowed, and through the death of a broker."""
    kafka, found = topics.kafka, topics.settings()
    limited = any(
        settings is not None and settings.retention_bytes is not None for settings in found.values()
    )
    growth = measure_growth(kafka, topics, now=time.time()) if limited else {}
    facts = topics.describe()
    durability = (
        finding
        for topic, settings in found.items()
        if settings is not None
        for finding in check_topic_durability(topic, settings, facts[topic].replicas)
    )
    retention = (
        finding
        for topic, settings in found.items()
        for finding in check_topic_retention(
            topic,
            settings,
            longest_outage_seconds=kafka.longest_outage,
            bytes_per_second=growth.get(topic),
        )
    )
    return (*retention, *durability)


def inspect_sample(pipeline: Pipeline, catalog: Catalog, topics: KafkaTopics) -> tuple[Finding, ...]:
    """The newest records read as the pipeline would: what would be dead, and how rows spread over partitions."""
    with read_sample(pipeline, known_schemas(pipeline, catalog), topics) as sample:
        if sample is None:
            nothing = "the topics hold no records yet that could be looked at"
            return (Finding(level=Level.OK, where="sample", what=nothing),)
        return (_check_sample(pipeline, sample), *_inspect_spread(pipeline, sample))


def _check_sample(pipeline: Pipeline, sample: RecordSample) -> Finding:
    limit = pipeline.dead_letters.max_share
    figures = f"of the {sample.records} newest records {sample.dead} would be dead letters"
    if sample.dead and limit is not None and sample.dead > limit * sample.records:
        return Finding(
            level=Level.WARNING,
            where="sample",
            what=f"{figures} (dead_letters.max_share is {limit:.0%}); the first is {sample.first_dead}",
            advice="correct source.format, source.fields or shape; an epoch like this, of "
            "dead_letters.min_records or more, stops the pipeline",
        )
    return Finding(level=Level.OK, where="sample", what=figures)


def _inspect_spread(pipeline: Pipeline, sample: RecordSample) -> Iterator[Finding]:
    client = connect(pipeline.clickhouse)
    for table in pipeline.tables:
        facts = describe_table(client, table.name)
        if facts is not None and facts.partition_key and table.name in sample.rows:
            spread = count_partitions(client, facts, sample.rows[table.name])
            yield from check_spread(facts, spread, needs_of(pipeline, table))


def inspect_clocks(pipeline: Pipeline, catalog: Catalog) -> tuple[Finding, ...]:
    readings = read_clocks(connect(pipeline.clickhouse), catalog)
    return tuple(check_clocks(readings, most_seconds=pipeline.max_clock_difference))


def require_ready(
    pipeline: Pipeline, catalog: Catalog, topics: KafkaTopics | None, *, may_wait: bool = False
) -> bool:
    """Raise unless source, ledger and tables can be used.

    With `may_wait`, ClickHouse may be down for a pipeline that has run before. Returns whether it was up: if not,
    `require_tables` is called before the first batch is inserted.
    """
    check_transform(pipeline)
    check_ledger(pipeline, catalog)
    pipeline = current(pipeline, catalog)
    found: list[Finding] = []
    if topics is not None:
        check_source(catalog, topics)
        found += inspect_source(topics)
    there = True
    try:
        found += _inspect_destination(pipeline, catalog)
    except TransientError:
        if not may_wait or not (catalog.exists() and catalog.identity() is not None):
            raise
        there = False
    # A version that records brought is no reason not to start: what comes of it becomes dead letters.
    listed = {schema.schema for schema in declared_schemas(pipeline)}
    known = with_merging_fields(pipeline) if there else pipeline
    found += check_versions(known, known_schemas(pipeline, catalog), listed)
    _refuse_errors(pipeline, found)
    return there


def with_merging_fields(pipeline: Pipeline) -> Pipeline:
    """The pipeline, knowing by which fields its tables merge rows: records without them are refused."""
    return with_tables(pipeline, read_tables(pipeline))


def with_merging_fields_if_up(pipeline: Pipeline) -> Pipeline | None:
    """As `with_merging_fields`; None while ClickHouse does not answer, or does not show all tables."""
    if connect(pipeline.clickhouse).find_trouble() is not None:
        return None
    with suppress(OncehouseError):  # who inserts says what is wrong
        facts = read_tables(pipeline)
        if len(facts) == len(pipeline.tables):
            return with_tables(pipeline, facts)
    return None


def inspect_versions(pipeline: Pipeline, catalog: Catalog) -> tuple[Finding, ...]:
    """Whether each known version of the schema has the fields that ids and tables depend on."""
    schemas = known_schemas(pipeline, catalog)
    if not schemas:
        return ()
    pipeline = current(pipeline, catalog)
    with suppress(TransientError):
        pipeline = with_merging_fields(pipeline)
    return tuple(check_versions(pipeline, schemas))


def require_tables(pipeline: Pipeline, catalog: Catalog) -> None:
    """Raise unless the tables can be used and the clocks agree."""
    pipeline = current(pipeline, catalog)
    _refuse_errors(pipeline, _inspect_destination(pipeline, catalog))


def _inspect_destination(pipeline: Pipeline, catalog: Catalog) -> tuple[Finding, ...]:
    return (*inspect_tables(pipeline), *inspect_clocks(pipeline, catalog))


def _refuse_errors(pipeline: Pipeline, found: Iterable[Finding]) -> None:
    errors = [finding for finding in found if finding.level is Level.ERROR]
    if errors:
        lines = "\n".join(f"  {finding.where}: {finding.what}\n    → {finding.advice}" for finding in errors)
        raise ConfigurationError(f"Pipeline {pipeline.pipeline} cannot run yet:\n{lines}")


def check_source(catalog: Catalog, topics: KafkaTopics) -> dict[str, TopicFacts]:
    if topics.kafka.reader == "direct":
        make_access(topics.kafka)
    known = {}
    positions = {}
    if catalog.exists():
        known, positions = epochs.read_topic_ids(catalog), epochs.read_positions(catalog)
    facts, _ = read_facts(topics, known, positions)
    if positions:
        partitions = {(topic, number) for topic, found in facts.items() for number in range(found.partitions)}
        read = {place: offset for place, offset in positions.items() if place in partitions}
        KafkaLog(topics, read, epochs.read_leader_epochs(catalog))
    return facts


def check_ledger(pipeline: Pipeline, catalog: Catalog) -> None:
    """The ledger must be of this version, pipeline and identity rule, and have schemas that have the fields."""
    store = FileStore(pipeline.ledger.files)
    store.check()
    require_newest(catalog, store)
    types = {name: parse_type(text) for name, text in pipeline.source.fields.items()}
    require_readable(known_schemas(pipeline, catalog), types, pipeline.source.protobuf)
    check_rule(pipeline, catalog)


def inspect_storage(pipeline: Pipeline, catalog: Catalog) -> tuple[Finding, ...]:
    """Whether there is room in the ledger, now and for a window; a run that has none waits for it."""
    if not catalog.exists():
        storage, kept = (
            StorageState(backlog_bytes=0, epoch_bytes=0, disks=read_disks(pipeline, catalog)),
            None,
        )
    else:
        storage, kept = read_storage_state(pipeline, catalog), sum_kept(catalog)
    window_seconds = pipeline.identity.window
    return tuple(
        check_disk_forecast(storage, kept, pipeline.ledger, window_seconds=window_seconds, now=catalog.now())
    )


def read_tables(pipeline: Pipeline) -> dict[str, TableFacts]:
    """What the tables are, as far as a retry depends on it."""
    client = connect(pipeline.clickhouse)
    found = {table.name: describe_table(client, table.name) for table in pipeline.tables}
    return {name: facts for name, facts in found.items() if facts is not None}
