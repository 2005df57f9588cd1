"""What is measured, and how: a private stack, one warm Spark session, the pipeline with its default settings.

The bare read is Spark's own batch read of the same topic into its noop sink, in the same session, best of three.
The pipeline is timed from the beginning of its first epoch to the moment ClickHouse finished its last insert, by the
server's own query log; peers are timed from their first poll. A run whose rows are not exactly the events that were
produced has no figures.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import SecretStr

from demo_traffic import IDENTITY
from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.create_table import create_table_ddl
from oncehouse.clickhouse.preflight.check import needs_of
from oncehouse.config.pipeline import ClickHouse, Identity, Ledger, Pipeline, Table
from oncehouse.devstack.jars import connector_jars
from oncehouse.devstack.stack import Stack
from oncehouse.ledger.catalog import epochs
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.run import run_pipeline
from oncehouse.pipeline.spark.session import open_session
from traffic import USUAL, Kind, make_source, plan_serials, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BARE_READS = 3
_LEAST_WARM_UP_EVENTS = 50_000


@dataclass(frozen=True, kw_only=True)
class Place:
    folder: Path
    stack: Stack
    say: Callable[[str], None]

    @property
    def client(self) -> Client:
        return connect(ClickHouse(url=self.stack.clickhouse.url))


@dataclass(frozen=True, kw_only=True)
class Topic:
    name: str
    produced: int
    unique: int
    value_bytes: int
    kind: Kind = USUAL


@dataclass(frozen=True, kw_only=True)
class Inserts:
    """What ClickHouse's query log says about the inserts into one table."""

    count: int
    rows: int
    first_finished_at: float
    last_finished_at: float
    sustained_per_second: float
    least_seconds_between: float


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    started_at: float
    seconds: float
    inserts: Inserts


@contextmanager
def open_place(say: Callable[[str], None]) -> Iterator[Place]:
    """A stack of its own in a temporary folder; both are gone afterwards."""
    with ExitStack() as at_end:
        folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-"))
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        stack = Stack(folder=folder / "stack")
        at_end.callback(stack.down)
        say("starting Kafka and ClickHouse")
        stack.up(say=say)
        yield Place(folder=folder, stack=stack, say=say)


@contextmanager
def open_spark(pipeline: Pipeline) -> Iterator[SparkSession]:
    spark = open_session(pipeline, connector_jars())
    try:
        yield spark
    finally:
        spark.stop()


def fill_topic(place: Place, name: str, events: int, kind: Kind = USUAL) -> Topic:
    place.say(f"producing {events:,} events into {name}: {kind.label}")
    serials = plan_serials(events, kind.duplicates)
    value_bytes = produce(place.stack.kafka.bootstrap_servers, name, kind, serials)
    return Topic(
        name=name, produced=events, unique=int(serials.max()) + 1, value_bytes=value_bytes, kind=kind
    )


def warm_up_size(events: int) -> int:
    """How many events go first, untimed: Java goes on compiling for millions, and the steady state is asked for."""
    return max(_LEAST_WARM_UP_EVENTS, events // 2)


def warm_up(place: Place, spark: SparkSession, topic: Topic) -> None:
    """Run the pipeline untimed; its table goes, so that its merges are not part of what follows."""
    run_bench_pipeline(place, spark, topic)
    place.client.command(f"DROP TABLE {topic.name} SYNC")


def make_pipeline(place: Place, topic: Topic | str, *, name: str | None = None, **sections: Any) -> Pipeline:
    """What somebody gets who sets nothing; the name, also of the table, is the topic's unless another is given.

    The name of a topic alone means one with events of the usual kind.
    """
    if isinstance(topic, str):
        topic = Topic(name=topic, produced=0, unique=0, value_bytes=0)
    name = name or topic.name
    ledger = place.folder / "ledger" / name
    servers = place.stack.kafka.bootstrap_servers
    return Pipeline(
        pipeline=name,
        source=make_source(topic.kind, servers, topic.name, ledger),
        identity=Identity(fields=IDENTITY),
        tables=(Table(name=name),),
        clickhouse=ClickHouse(url=place.stack.clickhouse.url),
        ledger=Ledger(catalog=SecretStr(f"sqlite:///{ledger}/catalog.db"), files=str(ledger / "files")),
        **sections,
    )


def write_pipeline(pipeline: Pipeline, file: Path) -> None:
    """As the file that the command line reads."""
    document = json.loads(pipeline.model_dump_json(exclude_unset=True))
    document["ledger"]["catalog"] = pipeline.ledger.catalog.get_secret_value()
    settings = {"spark.jars": ",".join(str(jar) for jar in connector_jars())}
    document["spark"] = {"settings": {**settings, **pipeline.spark.settings}}
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def create_table(place: Place, pipeline: Pipeline) -> None:
    table = pipeline.tables[0]
    needs = needs_of(pipeline, table)
    place.client.command(
        create_table_ddl(
            table=table.name,
            columns=needs.columns,
            identity_columns=pipeline.identity.fields,
            batch_column=table.batch_column,
            id_column=table.id_column,
            window=needs.window,
        )
    )


def read_bare(place: Place, spark: SparkSession, topic: Topic) -> float:
    """Seconds of the best of three."""
    seconds = []
    for _ in range(BARE_READS):
        records = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", place.stack.kafka.bootstrap_servers)
            .option("subscribe", topic.name)
            .load()
        )
        started = time.perf_counter()
        records.write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - started)
    place.say("bare reads took " + ", ".join(f"{one:.1f} s" for one in seconds))
    return min(seconds)


def run_bench_pipeline(
    place: Place, spark: SparkSession, topic: Topic, pipeline: Pipeline | None = None
) -> PipelineRun:
    """All of the topic through a new pipeline; its table must hold every event once."""
    pipeline = pipeline or make_pipeline(place, topic)
    create_table(place, pipeline)
    # What was produced a moment ago is still on its way to the disk, and would be waited for.
    os.sync()
    started_at = time.time()
    run_pipeline(pipeline, once=True, spark=spark)
    ended_at = time.time()
    inserts = read_inserts(place.client, pipeline.tables[0].name)
    require_exact(place.client, topic, table=pipeline.tables[0].name)
    require_logged(inserts, topic.unique)
    polled_at = first_epoch_at(pipeline)
    seconds = inserts.last_finished_at - polled_at
    place.say(
        f"the pipeline took {seconds:.1f} s, {polled_at - started_at:.1f} s to start"
        f" and {ended_at - inserts.last_finished_at:.1f} s to end"
    )
    return PipelineRun(started_at=started_at, seconds=seconds, inserts=inserts)


def first_epoch_at(pipeline: Pipeline) -> float:
    """When its first epoch began, before anything of it was read; the catalog's clock is this machine's."""
    catalog = open_catalog(pipeline)
    try:
        return min(epoch.started_at for epoch in epochs.list_epochs(catalog))
    finally:
        catalog.close()


def read_inserts(client: Client, table: str) -> Inserts:
    client.command("SYSTEM FLUSH LOGS")
    ((count, rows, first, last, least, first_finished, finished),) = client.query(
        "SELECT count(), sum(written_rows), min(started), max(started),"
        " arrayMin(arrayPopFront(arrayDifference(arraySort(groupArray(started))))), min(finished), max(finished) FROM ("
        "SELECT written_rows, toFloat64(query_start_time_microseconds) AS started,"
        " toFloat64(event_time_microseconds) AS finished FROM system.query_log"
        " WHERE type = 'QueryFinish' AND query_kind = 'Insert' AND has(tables, {table:String}))",
        {"table": f"{client.database}.{table}"},
    )
    return Inserts(
        count=count,
        rows=rows,
        first_finished_at=first_finished,
        last_finished_at=finished,
        sustained_per_second=(count - 1) / (last - first) if count > 1 else 0.0,
        least_seconds_between=least if count > 1 else 0.0,
    )


def require_logged(inserts: Inserts, rows: int) -> None:
    """The log must know all inserts, or the last of them was not the last."""
    if inserts.rows != rows:
        raise SystemExit(f"No figures: ClickHouse's query log knows {inserts.rows} of {rows} inserted rows")


def list_inserts(client: Client, table: str) -> tuple[list[float], list[int]]:
    """When each insert began, in their order, and its rows."""
    client.command("SYSTEM FLUSH LOGS")
    found = client.query(
        "SELECT toFloat64(query_start_time_microseconds) AS started, written_rows FROM system.query_log"
        " WHERE type = 'QueryFinish' AND query_kind = 'Insert' AND has(tables, {table:String}) ORDER BY started",
        {"table": f"{client.database}.{table}"},
    )
    return [started for started, _ in found], [rows for _, rows in found]


def require_exact(client: Client, topic: Topic, *, table: str | None = None) -> None:
    name = table or topic.name
    ((rows, unique),) = client.query(f"SELECT count(), uniqExact(product_id) FROM {name}")
    if not rows == unique == topic.unique:
        raise SystemExit(
            f"No figures: {name} has {rows} rows, {unique} of them different, for {topic.unique} events"
        )
