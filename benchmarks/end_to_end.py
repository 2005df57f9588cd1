"""The road beside the bare read of the same topic, its limits, and the peers, all in one run on one machine.

    python benchmarks/end_to_end.py [--events 5000000] [--profile] [--peer plain_tuned] [--no-kills]

One topic of JSON events of 200 bytes with a tenth of duplicates. Spark's bare read into its noop sink is warm and the
best of three; then the road, in the same session, which half as many events have warmed up, as they do with Spark's
own peer. --profile shows besides where the time of the road goes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import limits
import outage
import peers
import where_time_goes
from figures import OUT, Figure, figure, rate, show_and_save
from measure import (
    BARE_READS,
    Place,
    Road,
    Topic,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    read_bare,
    run_road,
    warm_up,
    warm_up_size,
)
from plots import draw_stacks
from processor_time import read_processor_seconds, show_used, tell_used, use_per_million

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 5_000_000


def measure(
    events: int = EVENTS,
    *,
    names: Sequence[str] = peers.NAMES,
    kills: bool = True,
    profile: bool = False,
) -> list[Figure]:
    """`names`: of the peers; with `kills` they and the road are killed half-way too."""
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", file=sys.stderr, flush=True)

    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        warm, topic = fill_topic(place, "warm", warm_up_size(events)), fill_topic(place, "bench", events)
        with open_spark(make_pipeline(place, topic)) as spark:
            say("warming up")
            warm_up(place, spark, warm)
            found, seconds = measure_road(place, spark, topic, profile=profile)
        lines = peers.compare(place, topic, warm, our_seconds=seconds, names=names, kills=kills)
        return found + peers.report(lines, topic)


def measure_road(
    place: Place, spark: SparkSession, topic: Topic, *, profile: bool
) -> tuple[list[Figure], float]:
    """The figures of bare read, road, limits and an outage, and the seconds of the road."""
    before_bare = read_processor_seconds(place.stack)
    bare_seconds = read_bare(place, spark, topic)
    before_road = read_processor_seconds(place.stack)
    load_average = os.getloadavg()[0]
    place.say(f"running the road; load average {load_average:.1f}")
    with ExitStack() as at_end:
        watch = at_end.enter_context(where_time_goes.watch_driver()) if profile else None
        road = run_road(place, spark, topic)
    after_road = read_processor_seconds(place.stack)
    if watch is not None:
        show_used("bare reads", before_bare, before_road, events=topic.produced * BARE_READS)
        show_used("road", before_road, after_road, events=topic.produced)
        watch.show("driver", road.seconds)
        where_time_goes.show_tasks(place.folder / "profile")
    found = tell(topic, road, bare_seconds, load_average)
    found += tell_used(before_road, after_road, events=topic.produced)
    draw_stacks(
        "bench-processor-time",
        title="processor seconds a million events",
        shares={
            "bare read": use_per_million(before_bare, before_road, events=topic.produced * BARE_READS),
            "oncehouse": use_per_million(before_road, after_road, events=topic.produced),
        },
    )
    place.say("the limits")
    found += limits.measure_in(place, spark, topic)
    place.say("running it once more without ClickHouse")
    found += outage.measure_outage(place, spark, topic, started_at=road.started_at)
    return found, road.seconds


def tell(topic: Topic, road: Road, bare_seconds: float, load_average: float) -> list[Figure]:
    return [
        figure("events", topic.produced, "events"),
        rate("end_to_end_events_per_s", topic.produced, road.seconds),
        rate("bare_read_events_per_s", topic.produced, bare_seconds),
        figure("ratio_to_bare_read", bare_seconds / road.seconds, "1"),
        figure("rows_per_insert", round(topic.unique / road.inserts.count), "rows"),
        figure("inserts_per_s_per_table", road.inserts.sustained_per_second, "inserts/s"),
        figure("least_seconds_between_inserts", road.inserts.least_seconds_between, "s"),
        figure("inserts", road.inserts.count, "inserts"),
        figure("load_average", load_average, "1"),
        figure("cores", len(os.sched_getaffinity(0)), "1"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--profile", action="store_true", help="show where the time of the road goes")
    parser.add_argument("--peer", action="append", choices=peers.NAMES, help="these alone; may be repeated")
    parser.add_argument("--no-kills", action="store_true", help="leave the kills out")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    found = measure(
        asked.events, names=asked.peer or peers.NAMES, kills=not asked.no_kills, profile=asked.profile
    )
    show_and_save(found, out=asked.out, length=f"end-to-end-{asked.events}")


if __name__ == "__main__":
    main()
