"""`make soak`: full load for twenty minutes while everything is killed at random, and nothing lost or doubled.

    python tools/soak.py [--minutes 20] [--kills 100] [--driver-kills 30] [--calm-minutes 3] [--seed N]

A private Kafka, ClickHouse and Spark cluster in a temporary folder. Ends with exit 0 only when all kills happened,
every event is in ClickHouse once, the ledger and `verify` agree, and memory and open files stayed bounded. Prints a
table, and writes build/soak.json and build/soak.png. docs/soak.md tells the rules.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from oncehouse.errors import OncehouseError
from soak_bounds import evaluate
from soak_cast import Cast
from soak_conduct import Asked, Conductor
from soak_report import Story, draw, lines, write_json
from soak_watch import BOUNDS

_INTERRUPTED_EXIT_CODE = 130


@dataclass(frozen=True, kw_only=True)
class Outputs:
    json: Path
    plots: tuple[Path, ...]


def run_soak(asked: Asked, outputs: Outputs) -> Story:
    story = Story(seed=asked.seed)
    with ExitStack() as at_end:
        folder = Path(tempfile.mkdtemp(prefix="oncehouse-soak-"))
        started = time.monotonic()

        def say(message: str) -> None:
            print(f"{time.monotonic() - started:7.1f} s  {message}", flush=True)

        say(f"seed {asked.seed}; everything is below {folder}")
        cast = at_end.enter_context(Cast(folder, say))
        conductor = Conductor(asked, cast, story, started, say)
        at_end.callback(conductor.close)
        try:
            conductor.perform()
        except OncehouseError as error:
            # What was seen until then is worth looking at all the more.
            story.problems.append(str(error))
        if story.phases is not None:
            story.judgements = evaluate(conductor.watch.samples, BOUNDS, story.phases)
            story.problems += [problem for one in story.judgements for problem in one.problems]
        draw(story, conductor.watch.samples, outputs.plots)
        write_json(story, outputs.json)
    if not story.problems:
        shutil.rmtree(folder, ignore_errors=True)
    return story


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long things are killed, at least")
    parser.add_argument("--kills", type=int, default=100, help="of everything but the driver")
    parser.add_argument("--driver-kills", type=int, default=30, help="each after new epochs were registered")
    parser.add_argument("--calm-minutes", type=float, default=3.0, help="full load without kills, at the end")
    parser.add_argument("--seed", type=int, help="of the kills and of the events; printed when chosen here")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="records that are always left to read")
    parser.add_argument("--epoch-rows", type=int, default=100_000, help="the most records of an epoch")
    parser.add_argument("--json", type=Path, default=Path("build/soak.json"))
    parser.add_argument("--plot", type=Path, action="append", help="where to draw; else build/soak.png")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = Asked(
        minutes=given.minutes,
        kills=given.kills,
        driver_kills=given.driver_kills,
        calm_minutes=given.calm_minutes,
        seed=secrets.randbelow(10**6) if given.seed is None else given.seed,
        backlog=given.backlog,
        epoch_rows=given.epoch_rows,
    )
    plots = tuple(given.plot or (Path("build/soak.png"),))
    try:
        story = run_soak(asked, Outputs(json=given.json, plots=plots))
    except OncehouseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT_CODE
    print("\n".join(lines(story)), flush=True)
    return 1 if story.problems else 0


if __name__ == "__main__":
    sys.exit(main())
