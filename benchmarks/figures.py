"""Figures of the benchmarks: {name, value, unit}, shown as a table beside those of the last run, and saved.

build/bench.json holds the newest figure of every name, whichever program printed it, with the commit that was measured.
A run of the same length is compared with the one before it, which is kept in build/last/: a tenth of the events gives
other figures. A run of all parts begins both anew, so that a part that fails leaves nothing of an older run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

Figure = dict[str, str | float]

OUT = Path("build/bench.json")


def figure(name: str, value: float, unit: str) -> Figure:
    return {"name": name, "value": round(value, 3), "unit": unit}


def rate(name: str, events: int, seconds: float, unit: str = "events/s") -> Figure:
    return {"name": name, "value": round(events / seconds), "unit": unit}


def format_change(before: float | None, now: float) -> str:
    """By how much a figure differs from what it was: +12 %, x3.4 where a percentage says little, or nothing."""
    if before is None:
        return "new"
    if before == now:
        return "="
    if before == 0 or before * now < 0:
        return f"was {before:g}"
    ratio = now / before
    return f"{ratio - 1:+.0%}".replace("%", " %") if 1 / 3 < ratio < 3 else f"x{ratio:.2g}"


def lay_out(figures: Sequence[Figure], before: Sequence[Figure]) -> list[str]:
    """The lines of the table; its last column is the change since the last run."""
    known = {one["name"]: float(one["value"]) for one in before}
    width = max((len(str(one["name"])) for one in figures), default=0)
    return [
        f"{one['name']:<{width}} {one['value']:>14,} {one['unit']:<12} "
        f"{format_change(known.get(one['name']), float(one['value'])):>10}"
        for one in figures
    ]


def merge(others: Sequence[Figure], figures: Sequence[Figure]) -> list[Figure]:
    """Beside the figures of other benchmarks, in place of this one's own older ones."""
    names = {one["name"] for one in figures}
    return [*(one for one in others if one["name"] not in names), *figures]


def read(file: Path) -> list[Figure]:
    return json.loads(file.read_text()) if file.exists() else []


def write(figures: Sequence[Figure], out: Path = OUT, *, replace_all: bool = False) -> None:
    """`replace_all`: without the figures that the file has."""
    out.parent.mkdir(parents=True, exist_ok=True)
    stamped: list[Figure] = [one | {"commit": read_commit()} for one in figures]
    out.write_text(json.dumps(merge([] if replace_all else read(out), stamped), indent=2) + "\n")


@cache
def read_commit() -> str:
    """What is measured; with a plus where files were changed since."""
    asked = ("git", "describe", "--always", "--dirty=+", "--exclude=*")
    told = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def last_run(length: str, out: Path = OUT) -> Path:
    return out.parent / "last" / f"{length}.json"


def show_and_save(
    figures: Sequence[Figure], *, out: Path = OUT, length: str = "usual", replace_all: bool = False
) -> None:
    """Print the figures and how they changed, then save them as the last run of this length."""
    last = last_run(length, out)
    print("\n".join(lay_out(figures, read(last))))
    write(figures, out)
    write(figures, last, replace_all=replace_all)


def main(
    measure: Callable[[int], list[Figure]], *, described: str | None, asked: str, default: int, help_: str
) -> None:
    """The command line of a benchmark that has one size: `python benchmarks/<name>.py --<asked> N`."""
    parser = argparse.ArgumentParser(description=described)
    parser.add_argument(f"--{asked}", dest="size", type=int, default=default, help=help_)
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    options = parser.parse_args()
    length = "usual" if options.size == default else f"{asked}-{options.size}"
    show_and_save(measure(options.size), out=options.out, length=length)


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
