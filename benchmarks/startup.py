"""From `oncehouse run` to the first row in ClickHouse: a new pipeline, started as its users start it.

    python benchmarks/startup.py [--turns 3]

Events are in the topic already. The first start warms the machine (files of Python and Java in its memory) and is left
out; the figure is the median of the others. The first row is there when ClickHouse has finished its first insert.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from figures import OUT, Figure, figure, say, show_and_save
from measure import Place, Topic, fill_topic, open_place, read_inserts
from peer_runs import OwnCommand

TURNS = 3
# Enough for a batch that need not wait for more.
EVENTS = 50_000

_PATIENCE_SECONDS = 180.0
_SAMPLE_SECONDS = 0.1


def start_once(place: Place, topic: Topic, name: str) -> float:
    """Seconds until the first insert was finished; the process is killed then."""
    command = OwnCommand(place, topic, name)
    started_at = time.time()
    with command.start() as process:
        while not place.client.query(f"SELECT count() FROM {name}")[0][0]:
            if process.poll() is not None or time.time() > started_at + _PATIENCE_SECONDS:
                raise SystemExit(f"No figures: no row came.\n{command.last_words()}")
            time.sleep(_SAMPLE_SECONDS)
    return read_inserts(place.client, name).first_finished_at - started_at


def measure(turns: int = TURNS) -> list[Figure]:
    with open_place(say) as place:
        topic = fill_topic(place, "bench", EVENTS)
        seconds = [start_once(place, topic, f"start_{turn}") for turn in range(turns + 1)]
    say("seconds from start to first row: " + ", ".join(f"{one:.1f}" for one in seconds))
    return [
        figure("start_to_first_row_s", statistics.median(seconds[1:]), "s"),
        figure("first_start_to_first_row_s", seconds[0], "s"),
        figure("start_load_average", os.getloadavg()[0], "1"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS, help="starts that are measured, after the first")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    asked = parser.parse_args()
    show_and_save(measure(asked.turns), out=asked.out, length="startup")


if __name__ == "__main__":
    main()
