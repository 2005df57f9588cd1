"""The pipeline beside the bare read of the same topic, its limits, and the peers, all in one run on one machine.

    python benchmarks/end_to_end.py [--events 5000000] [--turns 3] [--profile] [--peer plain_tuned] [--no-kills]

One topic of JSON events of 200 bytes with a tenth of duplicates. Spark's bare read into its noop sink is warm and the
best of three; then the pipeline, in the same session, which half as many events have warmed up, as they do with Spark's
own peer. Pipeline and the consumers that ratios are made of are run in turns, and the medians count; Spark's own, which
takes longer than all of them, takes part in the first turn. --profile shows besides where the time of the pipeline
goes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import limits
import outage
import peers
import where_time_goes
from figures import OUT, Figure, figure, rate, show_and_save
from measure import (
    BARE_READS,
    PipelineRun,
    Place,
    Topic,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    read_bare,
    run_bench_pipeline,
    warm_up,
    warm_up_size,
)
from plots import draw_stacks
from processor_time import make_used_figures, read_processor_seconds, show_used, use_per_million

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One run of the pipeline, and the processor seconds a million events that it took."""

    run: PipelineRun
    used: dict[str, float]
    load_average: float


def measure(
    events: int = EVENTS,
    *,
    names: Sequence[str] = peers.NAMES,
    kills: bool = True,
    profile: bool = False,
    turns: int = 1,
) -> list[Figure]:
    """`names`: of the peers; with `kills` they and the pipeline are killed half-way too."""
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", file=sys.stderr, flush=True)

    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        warm, topic = fill_topic(place, "warm", warm_up_size(events)), fill_topic(place, "bench", events)
        with open_spark(make_pipeline(place, topic)) as spark:
            say("warming up")
            warm_up(place, spark, warm)
            before_bare = read_processor_seconds(place.stack)
            bare_seconds = read_bare(place, spark, topic)
            bare_used = use_per_million(
                before_bare, read_processor_seconds(place.stack), events=topic.produced * BARE_READS
            )
            taken: list[Turn] = []
            seconds: dict[str, list[float]] = {name: [] for name in peers.COMPARED if name in names}
            # In turns, so that whatever else the machine does meets all of them.
            for number in range(turns):
                taken.append(run_turn(place, spark, topic, number, profile=profile))
                for name, each in seconds.items():
                    if number and name not in peers.IN_EVERY_TURN:
                        continue
                    each.append(peers.run_calm(place, peers.named(name), topic, warm, turn=number))
            middle = sorted(taken, key=lambda turn: turn.run.seconds)[(turns - 1) // 2]
            draw_used(bare_used, middle.used)
            found = [
                *make_figures(topic, middle, bare_seconds),
                figure("turns", turns, "1"),
                *make_used_figures(middle.used),
            ]
            say("the limits")
            found += limits.measure_in(place, spark, topic)
            say("running it once more without ClickHouse")
            found += outage.measure_outage(place, spark, topic, started_at=taken[0].run.started_at)
        medians = {name: statistics.median_low(each) for name, each in seconds.items()}
        medians[peers.OURS] = middle.run.seconds
        lines = peers.compare(place, topic, warm, taken=medians, names=names, kills=kills)
        return found + peers.report(lines, topic)


def run_turn(place: Place, spark: SparkSession, topic: Topic, number: int, *, profile: bool) -> Turn:
    """The table goes, so that its merges are not part of what follows; the ledger of the first turn is kept."""
    pipeline = make_pipeline(place, topic, name=f"{topic.name}_{number}" if number else None)
    load_average = os.getloadavg()[0]
    place.say(f"running the pipeline; load average {load_average:.1f}")
    before = read_processor_seconds(place.stack)
    with ExitStack() as at_end:
        watch = at_end.enter_context(where_time_goes.watch_driver()) if profile else None
        run = run_bench_pipeline(place, spark, topic, pipeline)
    used = use_per_million(before, read_processor_seconds(place.stack), events=topic.produced)
    if watch is not None:
        show_used("oncehouse", used)
        watch.show("driver", run.seconds)
        where_time_goes.show_tasks(place.folder / "profile")
    place.client.command(f"DROP TABLE {pipeline.tables[0].name} SYNC")
    if number:
        shutil.rmtree(place.folder / "ledger" / pipeline.pipeline)
    return Turn(run=run, used=used, load_average=load_average)


def draw_used(bare: dict[str, float], run: dict[str, float]) -> None:
    draw_stacks(
        "bench-processor-time",
        title="processor seconds a million events",
        shares={"bare read": bare, "oncehouse": run},
    )


def make_figures(topic: Topic, turn: Turn, bare_seconds: float) -> list[Figure]:
    run = turn.run
    return [
        figure("events", topic.produced, "events"),
        rate("end_to_end_events_per_s", topic.produced, run.seconds),
        rate("bare_read_events_per_s", topic.produced, bare_seconds),
        figure("ratio_to_bare_read", bare_seconds / run.seconds, "1"),
        figure("rows_per_insert", round(topic.unique / run.inserts.count), "rows"),
        figure("inserts_per_s_per_table", run.inserts.sustained_per_second, "inserts/s"),
        figure("least_seconds_between_inserts", run.inserts.least_seconds_between, "s"),
        figure("inserts", run.inserts.count, "inserts"),
        figure("load_average", turn.load_average, "1"),
        figure("cores", len(os.sched_getaffinity(0)), "1"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--profile", action="store_true", help="show where the time of the pipeline goes")
    parser.add_argument("--peer", action="append", choices=peers.NAMES, help="these alone; may be repeated")
    parser.add_argument(
        "--turns", type=int, default=1, help="of the pipeline and the peers it is compared with"
    )
    parser.add_argument("--no-kills", action="store_true", help="leave the kills out")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    found = measure(
        asked.events,
        names=asked.peer or peers.NAMES,
        kills=not asked.no_kills,
        profile=asked.profile,
        turns=asked.turns,
    )
    show_and_save(found, out=asked.out, length=f"end-to-end-{asked.events}")


if __name__ == "__main__":
    main()
