"""Ten minutes of a steady load: inserts a second, rows an insert, active parts over time, processor time by process.

    python benchmarks/steady.py [--seconds 600] [--rate 20000]

The default settings of a pipeline. Inserts are those of ClickHouse's query log; parts are looked at once a second.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from figures import OUT, Figure, figure, say, show_and_save
from measure import (
    Place,
    fill_topic,
    list_inserts,
    make_pipeline,
    open_place,
    open_spark,
    run_bench_pipeline,
)
from paced import under_load
from plots import draw_lines
from processor_time import make_used_figures, read_processor_seconds, use_per_million

SECONDS = 600
RATE = 20_000
WARM_UP_EVENTS = 50_000
NAME = "steady"

_SAMPLE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class TableSample:
    """How the table stood at some second."""

    second: float
    parts: int
    rows: int


def read_sample(place: Place, table: str, started_at: float) -> TableSample:
    ((parts, rows),) = place.client.query(
        "SELECT count(), sum(rows) FROM system.parts WHERE active AND database = currentDatabase()"
        " AND table = {table:String}",
        {"table": table},
    )
    return TableSample(second=time.time() - started_at, parts=parts, rows=rows)


def watch(place: Place, table: str, seconds: float) -> list[TableSample]:
    started_at, samples = time.time(), []
    while (now := time.time() - started_at) < seconds:
        samples.append(read_sample(place, table, started_at))
        time.sleep(max(0.0, _SAMPLE_SECONDS - (time.time() - started_at - now)))
    return samples


def most_in_a_second(starts: Sequence[float]) -> int:
    """The largest number of inserts that began within one second, wherever that second begins."""
    return max(
        (sum(1 for other in starts[at:] if other < start + 1.0) for at, start in enumerate(starts)), default=0
    )


def split_parts(samples: Sequence[TableSample]) -> tuple[int, int]:
    """The most active parts in the first half of the run and in the second: bounded means that they do not grow."""
    middle = len(samples) // 2
    return tuple(max((one.parts for one in half), default=0) for half in (samples[:middle], samples[middle:]))


def make_figures(
    samples: Sequence[TableSample], starts: Sequence[float], rows: Sequence[int]
) -> list[Figure]:
    before, after = split_parts(samples)
    span = (starts[-1] - starts[0]) if len(starts) > 1 else 1.0
    return [
        figure("steady_inserts_per_s", (len(starts) - 1) / span, "inserts/s"),
        figure("steady_most_inserts_in_a_second", most_in_a_second(starts), "inserts"),
        figure(
            "steady_least_seconds_between_inserts",
            min((later - earlier for earlier, later in pairwise(starts)), default=0.0),
            "s",
        ),
        figure("steady_rows_per_insert", sum(rows) / len(rows), "rows"),
        figure("steady_smallest_insert", min(rows[:-1], default=rows[-1]), "rows"),
        figure("steady_most_parts_first_half", before, "parts"),
        figure("steady_most_parts_second_half", after, "parts"),
    ]


def draw(samples: Sequence[TableSample], starts: Sequence[float], rows: Sequence[int]) -> None:
    by_ten_seconds = Counter(int((start - starts[0]) // 10) for start in starts)
    draw_lines(
        "bench-steady",
        title="a steady load",
        across="seconds",
        panels={
            "active parts": {"": [(one.second, one.parts) for one in samples]},
            "inserts a second (over 10 s)": {
                "": [(at * 10, n / 10) for at, n in sorted(by_ten_seconds.items())]
            },
            "rows of an insert": {
                "": [(start - starts[0], size) for start, size in zip(starts, rows, strict=True)]
            },
        },
    )


def measure(seconds: float = SECONDS, rate: int = RATE) -> list[Figure]:
    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        warm = fill_topic(place, "warm", WARM_UP_EVENTS)
        spark = at_end.enter_context(open_spark(make_pipeline(place, warm)))
        run_bench_pipeline(place, spark, warm)
        say(f"{rate:,} events/s for {seconds:.0f} s, load average {os.getloadavg()[0]:.1f}")
        before = read_processor_seconds(place.stack)
        with under_load(place, spark, [(rate, seconds)], name=NAME) as load:
            samples = watch(place, NAME, seconds)
        after = read_processor_seconds(place.stack)
        used = make_used_figures(use_per_million(before, after, events=load.events), prefix="steady_")
        starts, rows = list_inserts(place.client, NAME)
    draw(samples, starts, rows)
    return [
        figure("steady_events_per_s", rate, "events/s"),
        figure("steady_seconds", seconds, "s"),
        *make_figures(samples, starts, rows),
        *used,
        figure("steady_load_average", os.getloadavg()[0], "1"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rate", type=int, default=RATE, help="events a second")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    show_and_save(measure(asked.seconds, asked.rate), out=asked.out, length=f"steady-{asked.seconds:.0f}")


if __name__ == "__main__":
    main()
