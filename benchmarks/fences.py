"""What the requests cost that keep INSERTs from being lost or doubled, by the product's own code and settings.

    python benchmarks/fences.py [--inserts 200] [--rows 1000]

Inserts of a small batch with the fences and without them take turns in one run, so that the ratio hardly depends on
the machine. With them an attempt opens a session, counts the table's blocks and has a deadline; the token is sent in
either case. Requests are counted in ClickHouse's query log. Then a topic goes through the pipeline in small epochs: how
many requests of all kinds an epoch and an insert come to, what the request for the ends of Kafka's logs takes, of which
there is one an epoch, and what the mark in the ledger's files takes, of which there is one an attempt.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa

from measure import Place, create_table, fill_topic, make_pipeline, open_place, open_spark
from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.insert.deadline import SEND_WITHIN_SECONDS, Deadline
from oncehouse.clickhouse.insert.insert_batch import insert_batch
from oncehouse.clickhouse.insert.outcome import Inserted, InsertRequest
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.common.query_ids import attempt_query_id
from oncehouse.config import Epoch, Pipeline
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.epochs import list_epochs
from oncehouse.ledger.marks import Sending, write_mark
from oncehouse.ledger.models import BatchStatus, LedgerBatch, Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.take_lease import take_lease
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics
from oncehouse.pipeline.load.attempt import open_attempt
from oncehouse.pipeline.run import run_pipeline

INSERTS = 200
ROWS = 1_000
COUNTED = 20
READS = 50
EVENTS = 60_000
SMALL_EPOCH = 2_000
_TABLE = "fences"


def measure(place: Place, inserts: int, rows: int) -> Iterator[tuple[str, float]]:
    place.client.command(
        f"CREATE TABLE {_TABLE} (n UInt64, text String, _batch_id UUID) ENGINE = MergeTree ORDER BY n "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    yield from _measure_inserts(place, inserts, rows)
    yield from _measure_epochs(place)


def _measure_inserts(place: Place, inserts: int, rows: int) -> Iterator[tuple[str, float]]:
    pipeline = make_pipeline(place, _TABLE)
    table = pa.table({"n": np.arange(rows), "text": [f"some text of row {number}" for number in range(rows)]})
    facts = describe_table(place.client, _TABLE)
    fenced = partial(_insert, pipeline, table, facts, is_fenced=True)
    bare = partial(_insert, pipeline, table, facts, is_fenced=False)
    for warm_up in (fenced, bare) * 10:
        warm_up()
    times = [(_seconds(fenced), _seconds(bare)) for _ in range(inserts)]
    with_fences, without = (statistics.median(column) for column in zip(*times, strict=True))
    yield "insert_ms", with_fences * 1000
    yield "insert_without_fences_ms", without * 1000
    yield "ratio_to_insert_without_fences", with_fences / without
    yield "requests_an_insert", _count_requests(place.client, fenced)
    yield "requests_an_insert_without_fences", _count_requests(place.client, bare)


def _insert(pipeline: Pipeline, table: pa.Table, facts: TableFacts | None, *, is_fenced: bool) -> None:
    """A first attempt, as the loader makes it; without its fences only the token is left."""
    batch = LedgerBatch(
        batch_id=str(uuid.uuid4()),
        table=_TABLE,
        status=BatchStatus.NEW,
        rows=table.num_rows,
        size_bytes=table.nbytes,
        created_at=time.time(),
        attempts=0,
        next_attempt_at=0.0,
    )
    opened = open_attempt(pipeline, batch, facts) if is_fenced else None
    request = InsertRequest(
        table=_TABLE,
        columns=("n", "text"),
        batch_column="_batch_id",
        batch_id=batch.batch_id,
        attempt=1,
        rows=table.num_rows,
        earlier_query_ids=(),
        outcome_unknown=False,
        may_be_forgotten=False,
        merges_rows=False,
        deadline=Deadline(began=opened.began, seconds=SEND_WITHIN_SECONDS) if opened else None,
        session=attempt_query_id(batch.batch_id, 1) if opened else None,
    )
    outcome = insert_batch(connect(pipeline.clickhouse), request, table)
    if not isinstance(outcome, Inserted):
        raise SystemExit(f"No figures: {outcome}")


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _count_requests(client: Client, work: Callable[[], None]) -> float:
    started = time.time()
    for _ in range(COUNTED):
        work()
    return sum(_list_requests(client, started, time.time()).values()) / COUNTED


def _list_requests(client: Client, since: float, until: float) -> dict[str, int]:
    """Requests that ended meanwhile, by their kind."""
    client.command("SYSTEM FLUSH LOGS")
    found = client.query(
        "SELECT query_kind, count() FROM system.query_log WHERE type = 'QueryFinish' AND is_initial_query"
        " AND toFloat64(event_time_microseconds) BETWEEN {since:Float64} AND {until:Float64} GROUP BY query_kind",
        {"since": since, "until": until},
    )
    return {str(kind): int(count) for kind, count in found}


def _measure_epochs(place: Place) -> Iterator[tuple[str, float]]:
    topic = fill_topic(place, "small", EVENTS)
    pipeline = make_pipeline(place, topic.name).model_copy(
        update={"epoch": Epoch(max_rows=SMALL_EPOCH, max_wait=0.0)}
    )
    create_table(place, pipeline)
    with open_spark(pipeline) as spark:
        started = time.time()
        run_pipeline(pipeline, once=True, spark=spark)
        ended = time.time()
    requests = _list_requests(place.client, started, ended)
    with closing(open_catalog(pipeline)) as catalog:
        epochs = list_epochs(catalog)
    place.say(f"{len(epochs)} epochs, {requests.get('Insert', 0)} inserts")
    yield "requests_an_epoch", sum(requests.values()) / len(epochs)
    yield "other_requests_an_insert_of_a_run", sum(requests.values()) / requests["Insert"] - 1
    yield "log_ends_an_epoch_ms", _measure_log_ends(pipeline) * 1000
    yield "mark_an_attempt_ms", _measure_mark(pipeline) * 1000


def _measure_log_ends(pipeline: Pipeline) -> float:
    kafka = pipeline.source.kafka
    assert kafka is not None
    topics = KafkaTopics(kafka)
    places = [
        (name, number) for name, facts in topics.describe().items() for number in range(facts.partitions)
    ]
    return statistics.median(_seconds(lambda: topics.ends(places) and None) for _ in range(READS))


def _measure_mark(pipeline: Pipeline) -> float:
    """After a write to the catalog each: where none came, no mark is written."""
    store = FileStore(pipeline.ledger.files)
    with closing(open_catalog(pipeline)) as catalog:
        lease = take_lease(pipeline, catalog, Stage.LOAD, "benchmark")
        times = []
        for epoch in range(READS):
            catalog.write(Stage.LOAD, lease.token, lambda _connection: None)
            mark = partial(
                write_mark, catalog, store, Stage.LOAD, lease.token, Sending(attempt=None, epoch=epoch)
            )
            times.append(_seconds(mark))
        leases.release(catalog, lease)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inserts", type=int, default=INSERTS)
    parser.add_argument("--rows", type=int, default=ROWS)
    chosen = parser.parse_args()
    with open_place(lambda message: print(message, file=sys.stderr, flush=True)) as place:
        for name, value in measure(place, chosen.inserts, chosen.rows):
            print(f"{name:<40} {value:.4g}", flush=True)


if __name__ == "__main__":
    main()
