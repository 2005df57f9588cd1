"""How fast ingest goes on while ClickHouse is away, and how what waited is delivered afterwards.

The same topic goes through the pipeline twice in one session, each time with a ledger and a table of its own: with
ClickHouse up and loading beside the ingest, and with ClickHouse killed before the first epoch and started again after
the last. Ingest is timed from the call that starts the pipeline to the registration of the last epoch. The rows of each
insert afterwards are those of ClickHouse's own query log; rows that are not exactly the events produced give no
figures.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from measure import (
    Place,
    Topic,
    create_table,
    fill_topic,
    list_inserts,
    make_pipeline,
    open_place,
    open_spark,
    require_exact,
    run_bench_pipeline,
)
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.leases import list_leases
from oncehouse.ledger.models import BatchStatus, EpochKind, Stage
from oncehouse.ledger.stats import summary
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.run import run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.ledger.catalog.database import Catalog

EVENTS = 5_000_000
WARM_UP_EVENTS = 50_000

_PATIENCE_SECONDS = 600.0

Figure = dict[str, str | float]


@dataclass(frozen=True, kw_only=True)
class Outage:
    ingest_seconds: float
    catch_up_seconds: float
    insert_rows: tuple[int, ...]
    """In the order in which the inserts began."""


def run_without_clickhouse(place: Place, spark: SparkSession, topic: Topic) -> Outage:
    pipeline = make_pipeline(place, topic, name=f"{topic.name}_away")
    create_table(place, pipeline)
    catalog = open_catalog(pipeline)
    catalog.prepare()
    stop, failed = threading.Event(), []

    def run() -> None:
        try:
            run_pipeline(pipeline, stop=stop, spark=spark, say=place.say)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits
            failed.append(error)

    def wait_for(condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if failed or time.monotonic() > end:
                raise SystemExit(f"No figures: waited in vain for {what}") from next(iter(failed), None)
            time.sleep(0.05)

    thread = threading.Thread(target=run, name="away")
    started_at = time.time()
    thread.start()
    try:
        # Whoever holds its lease has looked at ClickHouse; no epoch is registered yet.
        wait_for(lambda: Stage.INGEST in {lease.stage for lease in list_leases(catalog)}, "the ingest lease")
        place.stack.kill("clickhouse")
        wait_for(lambda: _read(catalog) == topic.produced, "all events in the ledger")
        ingest_seconds = last_epoch_at(catalog) - started_at
        back_at = time.monotonic()
        place.stack.start("clickhouse")
        wait_for(lambda: _is_delivered(catalog), "all events in ClickHouse")
        catch_up_seconds = time.monotonic() - back_at
    finally:
        stop.set()
        thread.join()
        catalog.close()
    require_exact(place.client, topic, table=pipeline.pipeline)
    return Outage(
        ingest_seconds=ingest_seconds,
        catch_up_seconds=catch_up_seconds,
        insert_rows=tuple(list_inserts(place.client, pipeline.tables[0].name)[1]),
    )


def _read(catalog: Catalog) -> int:
    return epochs.total_counts(catalog, kind=EpochKind.KAFKA).read


def last_epoch_at(catalog: Catalog) -> float:
    """On the catalog's clock, which with SQLite is that of this machine."""
    return max(totals.last_registered_at or 0.0 for totals in summary.sum_epochs(catalog))


def _is_delivered(catalog: Catalog) -> bool:
    done = {BatchStatus.IN_CLICKHOUSE}
    return (
        not summary.sum_open_parts(catalog)
        and {found.status for found in summary.sum_batches(catalog)} <= done
    )


def measure_outage(place: Place, spark: SparkSession, topic: Topic, *, started_at: float) -> list[Figure]:
    """After the pipeline has run with ClickHouse up; `started_at` is when."""
    catalog = open_catalog(make_pipeline(place, topic))
    up_seconds = last_epoch_at(catalog) - started_at
    catalog.close()
    outage = run_without_clickhouse(place, spark, topic)
    rows = outage.insert_rows
    place.say(f"rows of the inserts after the outage: {', '.join(f'{one:,}' for one in rows)}")

    def figure(name: str, value: float, unit: str) -> Figure:
        return {"name": name, "value": round(value, 3), "unit": unit}

    return [
        figure("ingest_while_up_events_per_s", round(topic.produced / up_seconds), "events/s"),
        figure("ingest_while_away_events_per_s", round(topic.produced / outage.ingest_seconds), "events/s"),
        figure("ingest_while_away_ratio", up_seconds / outage.ingest_seconds, "1"),
        figure("inserts_after_outage", len(rows), "inserts"),
        figure("smallest_insert_after_outage", min(rows[:-1], default=rows[-1]), "rows"),
        figure("last_insert_after_outage", rows[-1], "rows"),
        figure("catch_up_after_outage_s", outage.catch_up_seconds, "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    asked = parser.parse_args()
    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(lambda message: print(message, file=sys.stderr, flush=True)))
        warm = fill_topic(place, "warm", WARM_UP_EVENTS)
        topic = fill_topic(place, "bench", asked.events)
        spark = at_end.enter_context(open_spark(make_pipeline(place, topic)))
        run_bench_pipeline(place, spark, warm)
        run = run_bench_pipeline(place, spark, topic)
        found = measure_outage(place, spark, topic, started_at=run.started_at)
    for figure in found:
        print(f"{figure['name']:<32} {figure['value']:>12} {figure['unit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
