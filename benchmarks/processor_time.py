"""Processor seconds by who used them: figures that hold on a busy machine too, where the clock says little.

Linux counts them for every process in /proc; children that have ended are counted with their parent, but not with this
process, whose children are programs that load and compare.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from figures import Figure, figure
from oncehouse.devstack.stack import Stack

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def least_seconds(work: Callable[[], object], rounds: int) -> float:
    """Of this process, over one round of the work."""
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def read_processor_seconds(stack: Stack) -> dict[str, float]:
    """Since each process began: Kafka, ClickHouse, Spark's JVM, its Python workers, and this driver."""
    parents, seconds, names = _read_all()
    found = {"driver": time.process_time()}
    for part in ("kafka", "clickhouse"):
        process = stack.process(part)
        found[part] = seconds.get(process.pid, 0.0) if process else 0.0
    jvms = [pid for pid, parent in parents.items() if parent == os.getpid() and names[pid] == "java"]
    found["Spark JVM"] = sum(seconds[pid] for pid in jvms)
    found["Python workers"] = sum(seconds[pid] for pid in _descendants(parents, jvms))
    return found


def use_per_million(before: dict[str, float], after: dict[str, float], *, events: int) -> dict[str, float]:
    return {name: (after[name] - before[name]) / events * 1e6 for name in after}


def show_used(title: str, used: dict[str, float]) -> None:
    """`used`: a million events."""
    whole = sum(used.values())
    print(f"{title}: {whole:.2f} processor seconds a million events")
    for name, seconds in sorted(used.items(), key=lambda item: -item[1]):
        print(f"  {seconds / max(whole, 0.01):6.1%} {seconds:8.2f} s  {name}")


def make_used_figures(used: dict[str, float], *, prefix: str = "") -> list[Figure]:
    """Processor seconds a million events, by process and in all."""
    return [
        *(
            figure(f"{prefix}cpu_s_per_million_{name.lower().replace(' ', '_')}", seconds, "s")
            for name, seconds in used.items()
        ),
        figure(f"{prefix}cpu_s_per_million", sum(used.values()), "s"),
    ]


def _read_all() -> tuple[dict[int, int], dict[int, float], dict[int, str]]:
    parents, seconds, names = {}, {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        # The program's name may hold spaces and parentheses, so fields are counted after the last one.
        fields = text[text.rindex(")") + 2 :].split()
        names[int(entry.name)] = text[text.index("(") + 1 : text.rindex(")")]
        parents[int(entry.name)] = int(fields[1])
        seconds[int(entry.name)] = sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_SECOND
    return parents, seconds, names


def _descendants(parents: dict[int, int], ancestors: list[int]) -> list[int]:
    found: list[int] = []
    newest = list(ancestors)
    while newest:
        newest = [pid for pid, parent in parents.items() if parent in newest]
        found += newest
    return found
