"""Events a second end to end for each format, size and share of duplicates, in one session.

    python benchmarks/throughput.py [--events 1000000] [--all | --compared] [--turns 5]

From the beginning of the first epoch to the end of the last insert, each kind with a topic, a ledger and a table of
its own. Without --all some of the eighteen kinds: each format, size and share once beside the usual ones. `make
bench-full` takes the median of five turns for the kinds whose ratio is asked for.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from figures import OUT, Figure, figure, rate, say, show_and_save
from measure import (
    Place,
    Topic,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    run_bench_pipeline,
    warm_up,
    warm_up_size,
)
from plots import draw_bars
from traffic import Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 1_000_000
WARM_UP_EVENTS = 50_000
FORMATS = ("json", "protobuf", "avro")
SHARES = (0.0, 0.1, 0.5)

ALL = tuple(
    Kind(format=format_, large=large, duplicates=share)
    for format_, large, share in product(FORMATS, (False, True), SHARES)
)
COMPARED = tuple(Kind(format=format_) for format_ in FORMATS)
FEW = (Kind(), Kind(format="protobuf"))
SOME = (
    *FEW,
    Kind(format="avro"),
    Kind(large=True),
    Kind(duplicates=0.0),
    Kind(duplicates=0.5),
)


def run_kinds(
    place: Place, spark: SparkSession, kinds: Sequence[Kind], events: int, compared: int, turns: int
) -> Iterator[tuple[Topic, float]]:
    """Each kind's topic and the seconds of its run: the median, of those that ratios are made of."""
    # What Java compiles is the same for all formats, so that a long way of one warms them all.
    warm_up(place, spark, fill_topic(place, "warm", warm_up_size(compared)))
    for format_ in dict.fromkeys(kind.format for kind in kinds):
        warm_up(place, spark, fill_topic(place, f"warm_{format_}", WARM_UP_EVENTS, Kind(format=format_)))
    alike = [fill_topic(place, kind.name, compared, kind) for kind in kinds if kind in COMPARED]
    taken: dict[str, list[float]] = {topic.name: [] for topic in alike}
    # In turns, so that whatever else the machine does meets all of them.
    for turn, topic in product(range(turns), alike):
        taken[topic.name].append(_run(place, spark, topic, f"{topic.name}_{turn}"))
    yield from ((topic, median(taken[topic.name])) for topic in alike)
    for kind in (kind for kind in kinds if kind not in COMPARED):
        # A fifth of the events where they are eight times as large.
        topic = fill_topic(place, kind.name, events // 5 if kind.large else events, kind)
        yield topic, _run(place, spark, topic, topic.name)


def _run(place: Place, spark: SparkSession, topic: Topic, name: str) -> float:
    """Seconds of its run; what it left behind is removed again."""
    place.say(f"{topic.kind.label}, load average {os.getloadavg()[0]:.1f}")
    seconds = run_bench_pipeline(place, spark, topic, make_pipeline(place, topic, name=name)).seconds
    place.client.command(f"DROP TABLE {name} SYNC")
    shutil.rmtree(place.folder / "ledger" / name)
    return seconds


def lay_out(found: Mapping[Kind, tuple[Topic, float]]) -> Iterator[str]:
    yield f"{'':<40}{'events/s':>14}{'MB/s':>10}"
    for kind, (topic, seconds) in found.items():
        megabytes = topic.value_bytes / seconds / 1e6
        yield f"{kind.label:<40}{topic.produced / seconds:>14,.0f}{megabytes:>10.1f}"


def make_figures(found: Mapping[Kind, tuple[Topic, float]]) -> list[Figure]:
    figures = [
        rate(f"throughput_{kind.name}_events_per_s", topic.produced, seconds)
        for kind, (topic, seconds) in found.items()
    ]
    speeds = {kind: topic.produced / seconds for kind, (topic, seconds) in found.items()}
    figures += [
        figure(f"{format_}_over_json", speeds[Kind(format=format_)] / speeds[Kind()], "1")
        for format_ in ("protobuf", "avro")
        if {Kind(), Kind(format=format_)} <= set(speeds)
    ]
    return figures


def measure(
    kinds: Sequence[Kind] = SOME, events: int = EVENTS, *, compared: int | None = None, turns: int = 1
) -> list[Figure]:
    """`compared`: events of the kinds that ratios are made of, where a start and an end must not count; in `turns`."""
    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        spark = at_end.enter_context(open_spark(make_pipeline(place, "nothing")))
        taken = {
            topic.kind: (topic, seconds)
            for topic, seconds in run_kinds(place, spark, kinds, events, compared or events, turns)
        }
        found = {kind: taken[kind] for kind in kinds}
    print("\n".join(lay_out(found)))
    speeds = {kind.label: topic.produced / seconds for kind, (topic, seconds) in found.items()}
    draw_bars("bench-throughput", title="events a second, end to end", values=speeds)
    return [*make_figures(found), figure("throughput_load_average", os.getloadavg()[0], "1")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS, help="events of each kind")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--all", action="store_true", help="all eighteen kinds")
    chosen.add_argument("--compared", action="store_true", help="only the three that ratios are made of")
    parser.add_argument("--turns", type=int, default=1, help="of those three")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    kinds = ALL if asked.all else COMPARED if asked.compared else SOME
    found = measure(kinds, asked.events, turns=asked.turns)
    show_and_save(found, out=asked.out, length=f"throughput-{asked.events}")


if __name__ == "__main__":
    main()
