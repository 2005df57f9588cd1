"""What a row costs when so many keys are in the window already: 1 million, 10 million, 100 million, a billion.

    python benchmarks/window_keys.py [--keys 1000000 --keys 100000000] [--events 6000000]

The index is generated: random keys in segments as large and as many as epochs of the usual size and the product's own
merging leave behind, spread over the window. Then a topic goes through the pipeline on top of it. The cost of a row is
the time between the registrations of epochs, loads beside them, over the events in them; the first epoch is left out,
for in it every worker reads its segments whole once to compare them with their checksums. An index that would leave
less than 15 GB of the disk is left out and named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from figures import OUT, Figure, figure, say, show_and_save
from index_layout import WINDOW_SECONDS, grow
from measure import Place, Topic, fill_topic, make_pipeline, open_place, open_spark, run_bench_pipeline
from memory import WorkerMemory
from oncehouse.config.pipeline import Epoch, Pipeline
from oncehouse.ledger.catalog.epochs import list_epochs
from oncehouse.ledger.catalog.segments import insert_segments
from oncehouse.ledger.models import EpochRow, Segment
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys, write_keys
from oncehouse.pipeline.checks.preflight import open_catalog
from plots import draw_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
EVENTS = 6_000_000
WARM_UP_EVENTS = 50_000

USUAL_EPOCH = Epoch().max_rows

_LEAST_EPOCHS = 3
_KEY_BYTES = 24
_KEPT_FREE_BYTES = 15 << 30
# Not older than this share of the window, so that nothing of the index is about to leave it.
_AGE_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Cost:
    keys: int
    segments: int
    seconds_a_row: float
    first_epoch_seconds: float
    worker_own_mib: float
    worker_mapped_mib: float


def plan_index(keys: int, *, epoch_keys: int, buckets: int, cores: int, now: float) -> list[Segment]:
    """The segments that so many keys make: an epoch after the other, merged as the product merges them."""
    seconds = WINDOW_SECONDS * _AGE_SHARE
    segments, _ = grow(
        keys=keys,
        epoch_keys=min(keys, epoch_keys),
        buckets=buckets,
        cores=cores,
        since=now - seconds,
        seconds=seconds,
    )
    return segments


def draw_keys(segment: Segment, buckets: int, rng: np.random.Generator) -> Keys:
    """Random keys of the segment's buckets, sorted: gaps between neighbours that add up to the whole range."""
    width = (1 << 64) // buckets
    gaps = rng.standard_exponential(segment.keys + 1)
    places = np.cumsum(gaps)
    span = (segment.bucket_to - segment.bucket_from + 1) * width
    high = (places[:-1] / places[-1] * float(span * (1 - 1e-9))).astype(np.uint64)
    return Keys(
        hi=high + np.uint64(segment.bucket_from * width),
        lo=rng.integers(0, 1 << 64, segment.keys, np.uint64),
        payload=rng.integers(0, 1 << 64, segment.keys, np.uint64),
    )


def write_index(pipeline: Pipeline, plan: Sequence[Segment]) -> None:
    store, rng = FileStore(pipeline.ledger.files), np.random.default_rng(3)
    made = []
    for segment in plan:
        keys = draw_keys(segment, pipeline.identity.buckets, rng)
        path = f"{pipeline.pipeline}/index/{segment.segment}.segment.arrow"
        file = store.put(path, lambda target, keys=keys: write_keys(target, keys))
        made.append(replace(segment, file=file))
    catalog = open_catalog(pipeline)
    catalog.prepare()
    catalog.change(lambda connection: insert_segments(connection, catalog, made))
    catalog.close()


def cost_of(epochs: Sequence[EpochRow]) -> tuple[float, float]:
    """Seconds a row from the second epoch on, and the seconds of the first; epochs in their order."""
    first, *later = epochs
    if not later:
        raise SystemExit("No figures: there was only one epoch; take more events")
    seconds = later[-1].registered_at - first.registered_at
    return seconds / sum(epoch.counts.read for epoch in later), first.registered_at - first.started_at


def run_on(place: Place, spark: SparkSession, topic: Topic, keys: int) -> Cost:
    epoch = Epoch(max_rows=min(USUAL_EPOCH, topic.produced // _LEAST_EPOCHS))
    pipeline = make_pipeline(place, topic, name=f"keys_{keys}", epoch=epoch)
    cores = spark.sparkContext.defaultParallelism
    plan = plan_index(
        keys,
        epoch_keys=USUAL_EPOCH,
        buckets=pipeline.identity.buckets,
        cores=cores,
        now=time.time(),
    )
    place.say(f"generating {keys:,} keys in {len(plan)} segments")
    write_index(pipeline, plan)
    place.say(f"the pipeline on top of them, load average {os.getloadavg()[0]:.1f}")
    with WorkerMemory() as memory:
        run_bench_pipeline(place, spark, topic, pipeline)
    catalog = open_catalog(pipeline)
    seconds_a_row, first_epoch_seconds = cost_of(list_epochs(catalog)[::-1])
    catalog.close()
    place.client.command(f"DROP TABLE {pipeline.tables[0].name} SYNC")
    shutil.rmtree(pipeline.ledger.files)
    return Cost(
        keys=keys,
        segments=len(plan),
        seconds_a_row=seconds_a_row,
        first_epoch_seconds=first_epoch_seconds,
        worker_own_mib=memory.own_mib,
        worker_mapped_mib=memory.mapped_mib,
    )


def fitting(keys: Sequence[int], free_bytes: int) -> tuple[list[int], list[int]]:
    """The sizes whose index fits the disk, and those that do not."""
    room = free_bytes - _KEPT_FREE_BYTES
    return [one for one in keys if one * _KEY_BYTES <= room], [one for one in keys if one * _KEY_BYTES > room]


def lay_out(costs: Sequence[Cost]) -> Iterator[str]:
    headings = ("segments", "µs a row", "first epoch", "own MiB", "mapped MiB")
    yield f"{'keys in the window':<20}" + "".join(f"{heading:>14}" for heading in headings)
    for cost in costs:
        yield (
            f"{cost.keys:<20,}{cost.segments:>14}{cost.seconds_a_row * 1e6:>14.2f}"
            f"{cost.first_epoch_seconds:>12.1f} s{cost.worker_own_mib:>14,.0f}{cost.worker_mapped_mib:>14,.0f}"
        )


def format_keys(keys: int) -> str:
    return f"{keys // 1_000_000_000}b" if keys >= 1_000_000_000 else f"{keys // 1_000_000}m"


def make_figures(costs: Sequence[Cost]) -> list[Figure]:
    figures = []
    for cost in costs:
        name = f"window_{format_keys(cost.keys)}"
        figures += [
            figure(f"{name}_us_per_row", cost.seconds_a_row * 1e6, "us"),
            figure(f"{name}_first_epoch_s", cost.first_epoch_seconds, "s"),
            figure(f"{name}_worker_mib", cost.worker_own_mib, "MiB"),
            figure(f"{name}_worker_mapped_mib", cost.worker_mapped_mib, "MiB"),
        ]
    by_keys = {format_keys(cost.keys): cost.seconds_a_row for cost in costs}
    figures += [
        figure(f"cost_{many}_over_1m", by_keys[many] / by_keys["1m"], "1")
        for many in ("10m", "100m", "1b")
        if many in by_keys and "1m" in by_keys
    ]
    return figures


def draw(costs: Sequence[Cost]) -> None:
    draw_lines(
        "bench-window-keys",
        title="cost of a row by keys in the window",
        across="keys in the window",
        logarithmic=True,
        panels={
            "µs a row": {"ingest": [(cost.keys, cost.seconds_a_row * 1e6) for cost in costs]},
            "MiB of a worker": {
                "its own": [(cost.keys, cost.worker_own_mib) for cost in costs],
                "mapped from the index": [(cost.keys, cost.worker_mapped_mib) for cost in costs],
            },
        },
    )


def measure(keys: Sequence[int] = KEYS, events: int = EVENTS) -> list[Figure]:
    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        chosen, left_out = fitting(keys, shutil.disk_usage(place.folder).free)
        if left_out:
            say(f"the disk is too small for {', '.join(f'{one:,}' for one in left_out)} keys")
        warm, topic = fill_topic(place, "warm", WARM_UP_EVENTS), fill_topic(place, "bench", events)
        spark = at_end.enter_context(open_spark(make_pipeline(place, warm)))
        run_bench_pipeline(place, spark, warm)
        costs = [run_on(place, spark, topic, one) for one in chosen]
    print("\n".join(lay_out(costs)))
    draw(costs)
    return [*make_figures(costs), figure("window_load_average", os.getloadavg()[0], "1")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=int, action="append", help="how many; may be repeated")
    parser.add_argument(
        "--events", type=int, default=EVENTS, help="events that go through the pipeline on top of them"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    found = measure(asked.keys or KEYS, asked.events)
    show_and_save(found, out=asked.out, length=f"window-keys-{asked.events}")


if __name__ == "__main__":
    main()
