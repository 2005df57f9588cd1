"""The two readers of Kafka, in turns on one topic and one warm session: speed and processor time.

    python benchmarks/readers.py [--events 4000000] [--turns 3]

`connector` is Spark's own, `direct` are the pipeline's tasks. All else is what a pipeline has by default; medians
of the turns are compared. A turn whose table has any other rows than were produced has no figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from figures import OUT, Figure, figure, show_and_save
from measure import (
    Place,
    Topic,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    run_bench_pipeline,
    warm_up_size,
)
from oncehouse.config.pipeline import Pipeline
from processor_time import read_processor_seconds, use_per_million

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Reader = Literal["connector", "direct"]
READERS: tuple[Reader, ...] = ("connector", "direct")
EVENTS = 4_000_000
TURNS = 3


def choose_reader(pipeline: Pipeline, reader: Reader) -> Pipeline:
    assert pipeline.source.kafka is not None
    kafka = pipeline.source.kafka.model_copy(update={"reader": reader})
    return pipeline.model_copy(update={"source": pipeline.source.model_copy(update={"kafka": kafka})})


def run_turn(
    place: Place, spark: SparkSession, topic: Topic, reader: Reader, turn: str
) -> tuple[float, dict[str, float]]:
    """Events a second, and processor seconds a million events by process."""
    pipeline = choose_reader(make_pipeline(place, topic, name=f"{topic.name}_{reader}_{turn}"), reader)
    before = read_processor_seconds(place.stack)
    place.say(f"{reader}, turn {turn}")
    run = run_bench_pipeline(place, spark, topic, pipeline)
    used = use_per_million(before, read_processor_seconds(place.stack), events=topic.produced)
    place.client.command(f"DROP TABLE {pipeline.tables[0].name} SYNC")
    return topic.produced / run.seconds, used


def measure(events: int = EVENTS, turns: int = TURNS) -> list[Figure]:
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", file=sys.stderr, flush=True)

    speeds: dict[Reader, list[float]] = {reader: [] for reader in READERS}
    used: dict[Reader, list[dict[str, float]]] = {reader: [] for reader in READERS}
    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        warm, topic = fill_topic(place, "warm", warm_up_size(events)), fill_topic(place, "bench", events)
        with open_spark(make_pipeline(place, topic)) as spark:
            for reader in READERS:
                run_turn(place, spark, warm, reader, "warm")
            for turn in range(turns):
                # The order alternates, so that a machine that slows down or warms up favours neither.
                for reader in READERS if turn % 2 else reversed(READERS):
                    speed, seconds = run_turn(place, spark, topic, reader, str(turn))
                    speeds[reader].append(speed)
                    used[reader].append(seconds)
    found = []
    whole = {}
    for reader in READERS:
        found.append(figure(f"reader_{reader}_events_per_s", median(speeds[reader]), "events/s"))
        for process in used[reader][0]:
            name = process.lower().replace(" ", "_")
            seconds = median(one[process] for one in used[reader])
            found.append(figure(f"reader_{reader}_cpu_s_per_million_{name}", seconds, "s"))
        whole[reader] = median(sum(one.values()) for one in used[reader])
        found.append(figure(f"reader_{reader}_cpu_s_per_million", whole[reader], "s"))
    return [
        *found,
        figure("reader_direct_over_connector", median(speeds["direct"]) / median(speeds["connector"]), "1"),
        figure("reader_direct_cpu_over_connector", whole["direct"] / whole["connector"], "1"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    options = parser.parse_args()
    found = measure(options.events, options.turns)
    show_and_save(found, out=options.out, length=f"readers-{options.events}")


if __name__ == "__main__":
    main()
