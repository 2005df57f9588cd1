"""`make bench`: how fast events come from Kafka into ClickHouse, against the bare read of the same topic; how fast they
are read while ClickHouse is away; what the scheduler of Fact tables costs; the batch consumer beside the bare client;
how fast an outbox is relayed; model sync beside django-clickhouse; how fast protobuf and Avro are decoded; and inserts
by message and by batch.

Prints a table and writes build/bench.json, a list of {name, value, unit}. --quick takes a tenth of the events;
--profile shows besides where the time of the road goes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import avro
import consumer
import etl
import insert_frequency
import outage
import outbox
import protobuf
import sync
import where_time_goes
from measure import (
    BARE_READS,
    Road,
    Topic,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    read_bare,
    run_road,
)
from processor_time import read_processor_seconds, show_used

EVENTS = 5_000_000
QUICK_EVENTS = 500_000
WARM_UP_EVENTS = 50_000

Figure = dict[str, str | float]


def measure(events: int, *, profile: bool) -> list[Figure]:
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", file=sys.stderr, flush=True)

    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        warm, topic = fill_topic(place, "warm", WARM_UP_EVENTS), fill_topic(place, "bench", events)
        say("warming up")
        spark = at_end.enter_context(open_spark(make_pipeline(place, topic)))
        run_road(place, spark, warm)
        before_bare = read_processor_seconds(place.stack)
        bare_seconds = read_bare(place, spark, topic)
        before_road = read_processor_seconds(place.stack)
        load_average = os.getloadavg()[0]
        say(f"running the road; load average {load_average:.1f}")
        watch = at_end.enter_context(where_time_goes.watch_driver()) if profile else None
        road = run_road(place, spark, topic)
        if watch is not None:
            after_road = read_processor_seconds(place.stack)
            show_used("bare reads", before_bare, before_road, events=topic.produced * BARE_READS)
            show_used("road", before_road, after_road, events=topic.produced)
            watch.show("driver", road.seconds)
            where_time_goes.show_tasks(place.folder / "profile")
        say("running it once more without ClickHouse")
        away = outage.measure_outage(place, spark, topic, started_at=road.started_at)
    return figures(topic, road, bare_seconds, load_average) + away


def figures(topic: Topic, road: Road, bare_seconds: float, load_average: float) -> list[Figure]:
    def figure(name: str, value: float, unit: str) -> Figure:
        return {"name": name, "value": round(value, 3), "unit": unit}

    return [
        figure("events", topic.produced, "events"),
        figure("end_to_end_events_per_s", round(topic.produced / road.seconds), "events/s"),
        figure("bare_read_events_per_s", round(topic.produced / bare_seconds), "events/s"),
        figure("ratio_to_bare_read", bare_seconds / road.seconds, "1"),
        figure("rows_per_insert", round(topic.unique / road.inserts.count), "rows"),
        figure("inserts_per_s_per_table", road.inserts.sustained_per_second, "inserts/s"),
        figure("least_seconds_between_inserts", road.inserts.least_seconds_between, "s"),
        figure("inserts", road.inserts.count, "inserts"),
        figure("load_average", load_average, "1"),
        figure("cores", len(os.sched_getaffinity(0)), "1"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_EVENTS} events instead of {EVENTS}")
    parser.add_argument("--events", type=int, help="any other number of events")
    parser.add_argument("--profile", action="store_true", help="show where the time of the road goes")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the figures go")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = measure(asked.events or (QUICK_EVENTS if asked.quick else EVENTS), profile=asked.profile)
        found += etl.measure(etl.TOPICS)
        found += consumer.measure()
        found += outbox.measure()
        found += sync.measure(changes=sync.CHANGES // 2, turns=2, saves=800)
        found += protobuf.measure()
        found += avro.measure()
        found += insert_frequency.measure()
    except KeyboardInterrupt:
        return 130
    for figure in found:
        print(f"{figure['name']:<32} {figure['value']:>12} {figure['unit']}")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
