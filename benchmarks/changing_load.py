"""A load that changes, little, much, little: the sizes that follow it beside fixed ones, small and large.

    python benchmarks/changing_load.py [--seconds 20]

The default settings follow the load. Small fixed sizes fall behind when there is much; large ones keep rows waiting
when there is little; those in the middle (10,000 rows, or 5 s) keep them waiting for less. Latencies are told apart by
the load when the event was due.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import OUT, Figure, figure, say, show_and_save
from latency import read_latency
from measure import Place, fill_topic, make_pipeline, open_place, open_spark, read_inserts, run_bench_pipeline
from oncehouse.config.pipeline import BatchLimits, Epoch
from paced import under_load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 20.0
LITTLE, MUCH = 2_000, 60_000
WARM_UP_EVENTS = 50_000
SETTINGS: dict[str, dict[str, Any]] = {
    "following": {},
    "fixed_middle": {"batch": BatchLimits(sizes="fixed", min_rows=10_000, max_wait=5.0)},
    "fixed_small": {
        "epoch": Epoch(max_rows=10_000),
        "batch": BatchLimits(sizes="fixed", min_rows=1_000, max_rows=10_000, max_wait=5.0),
    },
    "fixed_large": {
        "epoch": Epoch(max_wait=15.0),
        "batch": BatchLimits(sizes="fixed", min_rows=500_000, max_rows=1_000_000, max_wait=15.0),
    },
}

_LEFT_OUT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Way:
    name: str
    p95_little: float
    p95_much: float
    p95_after: float
    """Of the small rate again, after the large one."""
    inserts: int
    rows_per_insert: float


def run_with(place: Place, spark: SparkSession, name: str, seconds: float) -> Way:
    place.say(f"sizes {name}, load average {os.getloadavg()[0]:.1f}")
    before, busy_until = _LEFT_OUT_SECONDS + seconds, _LEFT_OUT_SECONDS + 2 * seconds
    phases = [(LITTLE, before), (MUCH, seconds), (LITTLE, seconds)]
    with under_load(place, spark, phases, name=name, **SETTINGS[name]):
        pass
    inserts = read_inserts(place.client, name)
    quiet = read_latency(place, name, LITTLE, first=_LEFT_OUT_SECONDS, last=before)
    busy = read_latency(place, name, MUCH, first=before, last=busy_until)
    after = read_latency(place, name, LITTLE, first=busy_until)
    return Way(
        name=name,
        p95_little=quiet.p95,
        p95_much=busy.p95,
        p95_after=after.p95,
        inserts=inserts.count,
        rows_per_insert=inserts.rows / inserts.count,
    )


def lay_out(ways: Sequence[Way]) -> Iterator[str]:
    yield (
        f"{'sizes':<16}{f'p95 at {LITTLE:,}/s':>18}{f'p95 at {MUCH:,}/s':>18}{'afterwards':>18}{'inserts':>10}"
        f"{'rows/insert':>14}"
    )
    for way in ways:
        yield (
            f"{way.name:<16}{way.p95_little:>16.2f} s{way.p95_much:>16.2f} s{way.p95_after:>16.2f} s"
            f"{way.inserts:>10}{way.rows_per_insert:>14,.0f}"
        )


def make_figures(ways: Sequence[Way]) -> list[Figure]:
    return [
        figure(f"changing_load_{way.name}_p95_s_{phase}", value, "s")
        for way in ways
        for phase, value in (("little", way.p95_little), ("much", way.p95_much), ("after", way.p95_after))
    ]


def measure(seconds: float = SECONDS) -> list[Figure]:
    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        warm = fill_topic(place, "warm", WARM_UP_EVENTS)
        spark = at_end.enter_context(open_spark(make_pipeline(place, warm)))
        run_bench_pipeline(place, spark, warm)
        ways = [run_with(place, spark, name, seconds) for name in SETTINGS]
    print("\n".join(lay_out(ways)))
    return [*make_figures(ways), figure("changing_load_load_average", os.getloadavg()[0], "1")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each load lasts")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    show_and_save(measure(asked.seconds), out=asked.out, length="changing-load")


if __name__ == "__main__":
    main()
