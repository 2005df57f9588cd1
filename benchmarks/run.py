"""`make bench`: how fast events come into ClickHouse, beside what people use today, and what the rest costs.

    python benchmarks/run.py [--quick | --full] [--only latency]

Parts are the other programs of this folder, each of which also runs alone. Prints their tables, then all figures with
their change since the last run of the same length; writes build/bench.json (a list of {name, value, unit}) and plots
(build/bench-*.png and .svg). A part that fails costs only its own figures. --quick takes about two minutes, the usual
length about ten, --full more than an hour and a half.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import avro
import changing_load
import cluster
import consumer
import end_to_end
import etl
import insert_frequency
import latency
import outbox
import protobuf
import startup
import steady
import sync
import throughput
import window_keys
from figures import OUT, Figure, figure, say, show_and_save, write

QUICK, USUAL, FULL = "quick", "usual", "full"

Work = Callable[[], list[Figure]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is measured at each length; a length that it is left out of has no work."""

    quick: Work | None = None
    usual: Work | None = None
    full: Work

    def work(self, length: str) -> Work | None:
        return {QUICK: self.quick, USUAL: self.usual, FULL: self.full}[length]


def _same(work: Work) -> Part:
    return Part(usual=work, full=work)


_FEW_PEERS = ("plain_tuned", "raw_tuned")

PARTS: dict[str, Part] = {
    "end_to_end": Part(
        quick=lambda: end_to_end.measure(500_000, names=_FEW_PEERS, kills=False),
        usual=lambda: end_to_end.measure(2_000_000, names=("spark_state", *_FEW_PEERS)),
        full=lambda: end_to_end.measure(15_000_000, turns=3),
    ),
    "throughput": Part(
        quick=lambda: throughput.measure(throughput.FEW, 300_000),
        usual=lambda: throughput.measure(throughput.SOME, 500_000),
        full=lambda: throughput.measure(throughput.ALL, 2_000_000, compared=8_000_000, turns=5),
    ),
    "startup": Part(usual=lambda: startup.measure(1), full=startup.measure),
    "latency": Part(usual=lambda: latency.measure((10_000,), 20), full=latency.measure),
    "window_keys": Part(
        usual=lambda: window_keys.measure((1_000_000, 10_000_000), 4_000_000), full=window_keys.measure
    ),
    "changing_load": Part(full=changing_load.measure),
    "steady": Part(full=steady.measure),
    "cluster": Part(usual=lambda: cluster.measure(200_000), full=cluster.measure),
    "etl": _same(lambda: etl.measure(etl.TOPICS)),
    "consumer": _same(consumer.measure),
    "outbox": _same(outbox.measure),
    "sync": Part(
        usual=lambda: sync.measure(changes=sync.CHANGES // 2, turns=2, saves=800), full=sync.measure
    ),
    "protobuf": _same(protobuf.measure),
    "avro": _same(avro.measure),
    "insert_frequency": _same(insert_frequency.measure),
}


def perform(parts: dict[str, Part], length: str, out: Path) -> tuple[list[Figure], list[str]]:
    """The figures of the parts in their order, saved after each, and which of them failed."""
    found, failed = [], []
    for name, part in parts.items():
        if (work := part.work(length)) is None:
            continue
        say(f"== {name}, load average {os.getloadavg()[0]:.1f}")
        started = time.monotonic()
        try:
            figures = work()
        except (Exception, SystemExit):  # noqa: BLE001 - the other parts have figures all the same
            traceback.print_exc()
            failed.append(name)
            continue
        write(figures, out)
        found += figures
        say(f"== {name} took {time.monotonic() - started:.0f} s")
    return found, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument("--quick", dest="length", action="store_const", const=QUICK, help="about 2 minutes")
    lengths.add_argument(
        "--full", dest="length", action="store_const", const=FULL, help="all that is promised"
    )
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="these parts; may be repeated")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    length = asked.length or USUAL
    started = time.monotonic()
    if not asked.only:
        write([], asked.out, replace_all=True)
    try:
        parts = {name: part for name, part in PARTS.items() if not asked.only or name in asked.only}
        found, failed = perform(parts, length, asked.out)
    except KeyboardInterrupt:
        return 130
    if not asked.only:
        found.append(figure(f"bench_{length}_seconds", time.monotonic() - started, "s"))
    show_and_save(found, out=asked.out, length=length, replace_all=not asked.only)
    if failed:
        say(f"no figures of: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
