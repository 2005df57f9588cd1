"""The page of figures: written from what runs have printed, and from nothing else."""

from __future__ import annotations

import pytest

from bench_modules import load_benchmark

page = load_benchmark("page")

MACHINE = "2 cores"


def test_a_figure_that_was_printed_stands_beside_what_is_asked_of_it() -> None:
    written = page.lay_out({"ratio_to_bare_read": 0.2531}, MACHINE, set())
    assert "| `ratio_to_bare_read` |" in written
    assert written.rstrip().endswith("| 0.2 or more | 0.2531 | yes |")


def test_a_figure_says_whether_what_is_asked_was_reached() -> None:
    values = {"ratio_to_plain_consumer": 1.196, "ratio_to_spark_state": 4.0, "latency_p95_s_at_10k": 3.0}
    lines = [line for line in page.format_targets(values) if line.startswith("| `")]
    assert [line.split(" | ")[-1] for line in lines] == ["yes |", "**no** |", "**no** |"]
    assert "| 1.196 |" in lines[1]


def test_the_page_names_what_was_measured() -> None:
    assert "commit abc, def." in page.lay_out({}, MACHINE, set(), ["abc", "def"])


def test_what_no_run_has_printed_has_no_table() -> None:
    written = page.lay_out({"start_to_first_row_s": 15.0}, MACHINE, set())
    assert "Beside others" not in written
    assert "`ratio_to_bare_read`" not in written


def test_a_peer_is_shown_with_what_a_kill_cost_it() -> None:
    values = {
        "end_to_end_events_per_s": 200_000,
        "oncehouse_lost_by_kill": 0,
        "oncehouse_doubled_by_kill": 0,
        "plain_tuned_events_per_s": 250_000,
        "plain_tuned_lost_by_kill": 0,
        "plain_tuned_doubled_by_kill": 41_000,
    }
    lines = list(page.format_peers(values))
    assert lines[2] == "| oncehouse | 200,000 | exact | 0 | 0 |"
    assert lines[3].endswith("| 250,000 | none | 0 | 41,000 |")


def test_kinds_of_events_make_a_line_a_format_and_size() -> None:
    values = {
        f"throughput_{format_}_200_{share}_events_per_s": speed
        for format_, speed in (("json", 1000.0), ("avro", 2000.0))
        for share in (0, 50)
    }
    assert list(page.format_throughput(values))[2:] == [
        "| json | 200 bytes | 1,000 | 1,000 |",
        "| avro | 200 bytes | 2,000 | 2,000 |",
        "",
    ]


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    before = f"a\n{page.BEGIN}\nold\n{page.END}\nb\n"
    assert page.put_between(before, "new\n") == f"a\n{page.BEGIN}\n\nnew\n\n{page.END}\nb\n"
    with pytest.raises(SystemExit, match="lacks the marks"):
        page.put_between("no marks", "new")
