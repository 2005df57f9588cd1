"""How long reading pauses for another identity rule, at two sizes of the ledger, under a steady load.

    python benchmarks/rekey_pause.py [--events 200000 --events 1000000] [--rate 5000]

The ledger is filled first. Then events come at a steady rate, the rule is asked for, and the pipeline prepares it
while it reads on. The pause is what the log says; the longest time between two epochs meanwhile is shown beside it, and
beside that of the seconds before. Rows that are not exactly the events give no figures.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paced
from demo_traffic import make_topic
from figures import OUT, Figure, figure, say, show_and_save
from measure import Place, Topic, create_table, make_pipeline, open_place, open_spark
from oncehouse.ledger.catalog import epochs, requests
from oncehouse.ledger.models import RequestKind
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.schema.identity_guard import format_section, identity_of
from traffic import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog

SIZES = (200_000, 1_000_000)
RATE = 5_000
_SECONDS = 90.0
_FILL_SECONDS = 10.0
_BEFORE_SECONDS = 10.0
_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Change:
    events: int
    """In the ledger when the rule was asked for."""
    seconds: float
    """From the request until the rule holds."""
    pause_seconds: float
    longest_gap_seconds: float
    """Between two epochs, from the request until after the change."""
    usual_gap_seconds: float
    """The longest one before the request."""


class Pauses(logging.Handler):
    """Hears how long the pause was."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "identity rule changed":
            self.seconds.append(record.fields["pause_seconds"])  # type: ignore[attr-defined]


def change_under_load(place: Place, spark: SparkSession, events: int, rate: int) -> Change:
    name = f"rekeyed_{events}"
    phases = [(int(events / _FILL_SECONDS), _FILL_SECONDS), (rate, _SECONDS)]
    load = paced.Load(servers=place.stack.kafka.bootstrap_servers, topic=name, phases=phases)
    make_topic(load.servers, name, partitions=PARTITIONS)
    topic = Topic(name=name, produced=load.events, unique=load.events, value_bytes=0)
    pipeline = make_pipeline(place, topic)
    create_table(place, pipeline)
    pauses = Pauses()
    logger = logging.getLogger("oncehouse.pipeline")
    logger.addHandler(pauses)
    logger.setLevel(logging.INFO)
    producer = subprocess.Popen([sys.executable, paced.__file__, json.dumps(load.__dict__)])
    catalog = open_catalog(pipeline)
    try:
        with paced.run_in_background(pipeline, spark) as running:
            _wait(lambda: _read(catalog) >= events, running)
            began = time.time()
            time.sleep(_BEFORE_SECONDS)
            asked_at, held = time.time(), _read(catalog)
            wanted = _ask(pipeline, catalog)
            _wait(lambda: catalog.identity() == wanted, running)
            ended_at = time.time()
            if producer.wait(_PATIENCE_SECONDS):
                raise SystemExit("No figures: the producer failed")
            paced.wait_for_rows(place, name, load.events, running)
        moments = sorted(epoch.registered_at for epoch in epochs.list_epochs(catalog))
    finally:
        logger.removeHandler(pauses)
        producer.kill()
        producer.wait()
        catalog.close()
    return Change(
        events=held,
        seconds=ended_at - asked_at,
        pause_seconds=pauses.seconds[0],
        longest_gap_seconds=_longest_gap(moments, asked_at, ended_at + _BEFORE_SECONDS),
        usual_gap_seconds=_longest_gap(moments, began, asked_at),
    )


def _ask(pipeline: Pipeline, catalog: Catalog) -> Any:
    """The same fields in another order make other ids of the same events; and twice as many buckets."""
    identity = pipeline.identity
    changed = {"fields": tuple(reversed(identity.fields)), "buckets": identity.buckets * 2}
    edited = pipeline.model_copy(update={"identity": identity.model_copy(update=changed)})
    asked = identity_of(edited, catalog)
    arguments: dict[str, object] = {
        "fingerprint": asked.fingerprint,
        "buckets": asked.buckets,
        "rule": format_section(edited),
    }
    requests.add_request(catalog, RequestKind.REKEY, arguments)
    return asked


def _read(catalog: Catalog) -> int:
    return epochs.total_counts(catalog).read if catalog.version() else 0


def _wait(condition: Any, running: Any) -> None:
    ends_at = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > ends_at or not running.is_alive():
            raise SystemExit("No figures: waited in vain")
        time.sleep(0.1)


def _longest_gap(moments: Sequence[float], first: float, last: float) -> float:
    meanwhile = [(before, after) for before, after in pairwise(moments) if after >= first and before <= last]
    return max((after - before for before, after in meanwhile), default=0.0)


def measure(sizes: Sequence[int] = SIZES, rate: int = RATE) -> list[Figure]:
    figures: list[Figure] = []
    with open_place(say) as place, open_spark(make_pipeline(place, "none")) as spark:
        for events in sizes:
            say(f"{events:,} events, load average {os.getloadavg()[0]:.1f}")
            found = change_under_load(place, spark, events, rate)
            say(
                f"of {found.events:,} events the rule was changed in {found.seconds:.1f} s; reading paused for "
                f"{found.pause_seconds:.2f} s; between epochs at most {found.longest_gap_seconds:.2f} s, before it "
                f"{found.usual_gap_seconds:.2f} s"
            )
            figures += [
                figure(f"rekey_{events}_seconds", found.seconds, "s"),
                figure(f"rekey_{events}_pause_seconds", found.pause_seconds, "s"),
                figure(f"rekey_{events}_longest_gap_seconds", found.longest_gap_seconds, "s"),
            ]
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, action="append", help="in the ledger; may be repeated")
    parser.add_argument("--rate", type=int, default=RATE, help="events a second meanwhile")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    show_and_save(measure(given.events or SIZES, given.rate), out=given.out, length="rekey-pause")
