"""How long an event takes from its sending until it can be read in ClickHouse, at 1,000, 10,000 and 50,000 a second.

    python benchmarks/latency.py [--rate 10000] [--seconds 60]

The default settings of a pipeline, on one machine with producer, Kafka and ClickHouse. The first ten seconds of a load
are left out. See paced.py for what is taken as sent and as visible.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from figures import OUT, Figure, figure, say, show_and_save
from measure import (
    Place,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    read_inserts,
    require_logged,
    run_bench_pipeline,
)
from paced import under_load
from plots import draw_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATES = (1_000, 10_000, 50_000)
SECONDS = 60
WARM_UP_EVENTS = 50_000

_LEFT_OUT_SECONDS = 10.0
_SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True)
class Latency:
    rate: int
    p50: float
    p95: float
    p99: float
    longest: float
    inserts_per_second: float
    rows_per_insert: float


def read_latency(place: Place, table: str, rate: int, *, first: float, last: float = 1e9) -> Latency:
    """Of the events that were due so many seconds after the first one, by the server's own log."""
    client = place.client
    inserts = read_inserts(client, table)
    shares = ", ".join(map(str, _SHARES))
    ((rows,),) = client.query(f"SELECT count() FROM {table}")
    require_logged(inserts, rows)
    ((quantiles, longest),) = client.query(
        f"SELECT quantilesExact({shares})(seconds), max(seconds) FROM ("
        f"SELECT finished - toFloat64(created_at) AS seconds FROM {table} AS event INNER JOIN ("
        "SELECT toUUID(substring(query_id, 1, 36)) AS batch, min(toFloat64(event_time_microseconds)) AS finished"
        " FROM system.query_log WHERE type = 'QueryFinish' AND query_kind = 'Insert' AND has(tables, {table:String})"
        " GROUP BY batch) AS inserted ON event._batch_id = inserted.batch"
        f" WHERE toFloat64(created_at) - (SELECT toFloat64(min(created_at)) FROM {table})"
        " BETWEEN {first:Float64} AND {last:Float64})",
        {"table": f"{client.database}.{table}", "first": first, "last": last},
    )
    p50, p95, p99 = quantiles
    return Latency(
        rate=rate,
        p50=p50,
        p95=p95,
        p99=p99,
        longest=longest,
        inserts_per_second=inserts.sustained_per_second,
        rows_per_insert=inserts.rows / inserts.count,
    )


def run_at(place: Place, spark: SparkSession, rate: int, seconds: float) -> Latency:
    place.say(f"{rate:,} events/s for {seconds:.0f} s, load average {os.getloadavg()[0]:.1f}")
    name = f"latency_{rate}"
    with under_load(place, spark, [(rate, seconds + _LEFT_OUT_SECONDS)], name=name):
        pass
    return read_latency(place, name, rate, first=_LEFT_OUT_SECONDS)


def lay_out(found: Sequence[Latency]) -> Iterator[str]:
    headings = ("p50", "p95", "p99", "longest", "inserts/s", "rows/insert")
    yield f"{'events/s':<12}" + "".join(f"{heading:>12}" for heading in headings)
    for one in found:
        seconds = "".join(f"{value:>10.2f} s" for value in (one.p50, one.p95, one.p99, one.longest))
        yield f"{one.rate:<12,}{seconds}{one.inserts_per_second:>12.2f}{one.rows_per_insert:>12,.0f}"


def make_figures(found: Sequence[Latency]) -> list[Figure]:
    return [
        figure(f"latency_{name}_s_at_{one.rate // 1000}k", value, "s")
        for one in found
        for name, value in (("p50", one.p50), ("p95", one.p95), ("p99", one.p99))
    ]


def draw(found: Sequence[Latency]) -> None:
    lines = {name: [(one.rate, getattr(one, name)) for one in found] for name in ("p50", "p95", "p99")}
    draw_lines(
        "bench-latency",
        title="from sending to visible",
        across="events a second",
        logarithmic=True,
        panels={"seconds": lines},
    )


def measure(rates: Sequence[int] = RATES, seconds: float = SECONDS) -> list[Figure]:
    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        warm = fill_topic(place, "warm", WARM_UP_EVENTS)
        spark = at_end.enter_context(open_spark(make_pipeline(place, warm)))
        run_bench_pipeline(place, spark, warm)
        found = [run_at(place, spark, rate, seconds) for rate in rates]
    print("\n".join(lay_out(found)))
    draw(found)
    return [*make_figures(found), figure("latency_load_average", os.getloadavg()[0], "1")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=int, action="append", help="events a second; may be repeated")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each load is measured")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    show_and_save(measure(asked.rate or RATES, asked.seconds), out=asked.out, length="latency")


if __name__ == "__main__":
    main()
