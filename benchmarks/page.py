"""Writes the figures of the last runs into the docs: tables, plots, the machine.

    python benchmarks/page.py

Reads build/bench.json and build/bench-*.svg as `make bench-full` leaves them, and writes what stands between the two
marks of docs/benchmarks.md, and the plots beside the page. A figure that no run has printed is left out, and so is its
table when none is there.
"""

from __future__ import annotations

import operator
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from figures import OUT, last_run, read
from peers import OURS, PEERS, describe_dedup

PAGE = Path("docs/benchmarks.md")
PLOTS = Path("docs/images")
BEGIN, END = "<!-- figures: benchmarks/page.py -->", "<!-- end of figures -->"

Values = Mapping[str, float]

LEAST, MOST, BELOW = "{:,g} or more", "{:,g} or less", "less than {:,g}"
_REACHED = {LEAST: operator.ge, MOST: operator.le, BELOW: operator.lt}
NOT_ASKED = "-"

# name, what is asked of it, and what it is
ASKED = (
    ("ratio_to_bare_read", LEAST, 0.2, "speed over Spark's bare read of the topic"),
    ("ratio_to_spark_state", LEAST, 4, "over Spark's own stateful deduplication"),
    (
        "ratio_to_spark_tuned",
        NOT_ASKED,
        0,
        "the same, where Spark is told not to count the rows of its state",
    ),
    ("ratio_to_plain_consumer", LEAST, 1.2, "over a tuned consumer that decodes and does not deduplicate"),
    (
        "ratio_to_raw_consumer",
        LEAST,
        1,
        "over one that passes bytes on and does not deduplicate: the ceiling, and the prize",
    ),
    ("protobuf_over_json", LEAST, 1.2, "protobuf over JSON"),
    ("cost_100m_over_1m", MOST, 1.5, "a row with 100 million keys in the window over one with a million"),
    ("cost_1b_over_1m", MOST, 2.5, "the same with a billion"),
    ("window_1b_worker_mib", BELOW, 2048, "MiB of a worker's own memory with a billion"),
    ("latency_p95_s_at_10k", BELOW, 3, "seconds from sending to visible, p95 at 10,000 events/s"),
    ("steady_inserts_per_s", MOST, 1, "inserts a second of a table, ten minutes of steady load"),
    ("steady_most_inserts_in_a_second", MOST, 1, "inserts that began within any one second of them"),
    ("steady_rows_per_insert", LEAST, 10_000, "rows an insert, the same ten minutes"),
    (
        "steady_most_parts_second_half",
        MOST,
        100,
        "active parts of the table; from 1,000 on ClickHouse slows inserts down",
    ),
    ("start_to_first_row_s", BELOW, 20, "seconds from `oncehouse run` to the first row"),
)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Nothing where there are no rows."""
    if rows:
        yield "| " + " | ".join(headings) + " |"
        yield "|" + "---|" * len(headings)
        yield from ("| " + " | ".join(row) + " |" for row in rows)
        yield ""


def format_value(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_targets(values: Values) -> Iterator[str]:
    rows = [
        (
            f"`{name}`",
            meaning,
            asked.format(bound),
            f"{values[name]:,g}",
            _compare_with_target(asked, values[name], bound),
        )
        for name, asked, bound, meaning in ASKED
        if name in values
    ]
    yield from table(("figure", "what it is", "asked", "printed", "reached"), rows)


def _compare_with_target(asked: str, value: float, bound: float) -> str:
    if asked == NOT_ASKED:
        return NOT_ASKED
    return "yes" if _REACHED[asked](value, bound) else "**no**"


def format_peers(values: Values) -> Iterator[str]:
    def speed(name: str) -> float | None:
        return values.get("end_to_end_events_per_s" if name == OURS else f"{name}_events_per_s")

    known = [(OURS, OURS, True), *((peer.name, peer.label, peer.dedups) for peer in PEERS)]
    rows = [
        (
            label,
            f"{found:,.0f}",
            describe_dedup(name, dedups=dedups),
            *(
                format_value(values[key]) if key in values else ""
                for key in (f"{name}_lost_by_kill", f"{name}_doubled_by_kill")
            ),
        )
        for name, label, dedups in known
        if (found := speed(name)) is not None
    ]
    yield from table(("", "events/s", "deduplication", "lost by a kill -9", "doubled by it"), rows)


def format_throughput(values: Values) -> Iterator[str]:
    found = {
        match.groups(): value
        for name, value in values.items()
        if (match := re.fullmatch(r"throughput_([a-z]+)_(\d+)_(\d+)_events_per_s", name))
    }
    shares = sorted({int(share) for _, _, share in found})
    rows = [
        (format_, f"{size} bytes", *(f"{found[format_, size, str(share)]:,.0f}" for share in shares))
        for format_, size in dict.fromkeys((format_, size) for format_, size, _ in found)
        if all((format_, size, str(share)) in found for share in shares)
    ]
    headings = ("format", "event as JSON", *(f"{share} % duplicates" for share in shares))
    yield from table(headings, rows)


def format_window(values: Values) -> Iterator[str]:
    sizes = {"1m": "1 million", "10m": "10 million", "100m": "100 million", "1b": "1 billion"}
    rows = [
        (
            label,
            f"{values[f'window_{size}_us_per_row']:.2f} µs",
            f"{values[f'window_{size}_worker_mib']:,.0f} MiB",
            f"{values[f'window_{size}_worker_mapped_mib']:,.0f} MiB",
        )
        for size, label in sizes.items()
        if f"window_{size}_us_per_row" in values
    ]
    yield from table(("keys in the window", "a row", "memory of a worker", "mapped from the index"), rows)


def format_latency(values: Values) -> Iterator[str]:
    rows = [
        (label, *(f"{values[f'latency_{share}_s_at_{rate}']:.2f} s" for share in ("p50", "p95", "p99")))
        for rate, label in (("1k", "1,000"), ("10k", "10,000"), ("50k", "50,000"))
        if f"latency_p95_s_at_{rate}" in values
    ]
    yield from table(("events/s", "p50", "p95", "p99"), rows)


def format_changing_load(values: Values) -> Iterator[str]:
    ways = {
        "following": "follow the load (the default)",
        "fixed_small": "fixed, small",
        "fixed_middle": "fixed, between",
        "fixed_large": "fixed, large",
    }
    rows = [
        (
            label,
            *(f"{values[f'changing_load_{way}_p95_s_{load}']:.1f} s" for load in ("little", "much", "after")),
        )
        for way, label in ways.items()
        if f"changing_load_{way}_p95_s_after" in values
    ]
    headings = ("sizes of epochs and batches", "p95 at 2,000 events/s", "p95 at 60,000", "p95 at 2,000 again")
    yield from table(headings, rows)


def format_rest(values: Values) -> Iterator[str]:
    names = [
        name
        for name in values
        if name.startswith(
            ("cpu_s_per_million", "bare_", "epoch_fixed", "steady_", "start_to", "ingest_while")
        )
        or name in ("events", "rows_per_insert", "inserts_per_s_per_table", "catch_up_after_outage_s")
    ]
    yield from table(("other figures", ""), [(f"`{name}`", format_value(values[name])) for name in names])


SECTIONS = (
    ("What is asked, and what was printed", None, format_targets),
    ("Beside others", "bench-peers", format_peers),
    ("Formats, sizes, duplicates", "bench-throughput", format_throughput),
    ("Keys in the window", "bench-window-keys", format_window),
    ("Latency", "bench-latency", format_latency),
    ("A load that changes", None, format_changing_load),
    ("Ten minutes of a steady load", "bench-steady", lambda _values: iter(())),
    ("Processor time, limits, the rest", "bench-processor-time", format_rest),
)


def lay_out(values: Values, machine: str, plots: set[str], commits: Sequence[str] = ()) -> str:
    told = f"; commit {', '.join(commits)}" if commits else ""
    lines = [f"By `make bench-full`, {machine}{told}.", ""]
    for heading, plot, format_section in SECTIONS:
        body = list(format_section(values))
        if plot in plots:
            body = [f"![{heading}](images/{plot}.svg)", "", *body]
        if body:
            lines += [f"### {heading}", "", *body]
    return "\n".join(lines).rstrip() + "\n"


def put_between(page: str, written: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{written}\n{END}{after}"


def describe_machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores ({platform.machine()}), {memory:.0f} GiB of memory, Kafka and ClickHouse on the same cores; "
        f"Python {platform.python_version()}, Spark {version('pyspark')}, Arrow {version('pyarrow')}"
    )


def main() -> None:
    figures = read(last_run("full"))
    values = {str(one["name"]): float(one["value"]) for one in figures}
    commits = sorted({str(one["commit"]) for one in figures})
    plots = {plot for _, plot, _ in SECTIONS if plot and (OUT.parent / f"{plot}.svg").exists()}
    for plot in plots:
        shutil.copyfile(OUT.parent / f"{plot}.svg", PLOTS / f"{plot}.svg")
    PAGE.write_text(put_between(PAGE.read_text(), lay_out(values, describe_machine(), plots, commits)))
    print(f"{PAGE}, {len(plots)} plots in {PLOTS}")


if __name__ == "__main__":
    main()
