"""The constants of `oncehouse plan-capacity` that need the whole pipeline: what an epoch and what an event cost.

    python benchmarks/epoch_cost.py [--events 5000000]

`epoch_seconds` is the median time from one small epoch's registration to the next, while more waits to be read.
`road_seconds_an_event` is the processor time of Spark's Java, its Python workers and the driver, loads included, over
the events; Kafka's and ClickHouse's is left out, and so is the start. It takes millions of events: with 500,000 the
fixed cost of epochs is most of it (23 µs).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import pairwise

from measure import (
    Place,
    Topic,
    create_table,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    run_bench_pipeline,
)
from oncehouse.config.pipeline import Epoch
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import list_epochs
from oncehouse.pipeline.run import run_pipeline
from processor_time import read_processor_seconds

EVENTS = 5_000_000
SMALL_EVENTS = 60_000
SMALL_EPOCH = 2_000
_SERVERS = ("kafka", "clickhouse")


def measure(place: Place, events: int) -> dict[str, float]:
    warm, small, topic = (
        fill_topic(place, name, count)
        for name, count in (("warm", 50_000), ("small", SMALL_EVENTS), ("bench", events))
    )
    with open_spark(make_pipeline(place, topic.name)) as spark:
        run_bench_pipeline(place, spark, warm)
        epoch_seconds = _measure_epochs(place, spark, small)
        before = read_processor_seconds(place.stack)
        run_bench_pipeline(place, spark, topic)
        after = read_processor_seconds(place.stack)
    used = sum(after[name] - before[name] for name in after if name not in _SERVERS)
    return {"epoch_seconds": epoch_seconds, "road_seconds_an_event": used / topic.produced}


def _measure_epochs(place: Place, spark: object, topic: Topic) -> float:
    pipeline = make_pipeline(place, topic.name).model_copy(
        update={"epoch": Epoch(max_rows=SMALL_EPOCH, max_wait=0.0)}
    )
    create_table(place, pipeline)
    run_pipeline(pipeline, once=True, spark=spark)
    catalog = Catalog(pipeline.ledger.catalog.get_secret_value(), pipeline.pipeline)
    try:
        registered = sorted(epoch.registered_at for epoch in list_epochs(catalog))
    finally:
        catalog.close()
    place.say(f"{len(registered)} epochs of {SMALL_EPOCH} events")
    return statistics.median(later - earlier for earlier, later in pairwise(registered))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=EVENTS)
    events = parser.parse_args().events
    with open_place(lambda message: print(message, file=sys.stderr, flush=True)) as place:
        for name, value in measure(place, events).items():
            print(f"{name:<36} {value:.4g}")


if __name__ == "__main__":
    main()
