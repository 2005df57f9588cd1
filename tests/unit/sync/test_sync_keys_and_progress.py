"""What a backfill and a verification decide and tell, without servers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.cli.sync.key_progress import INTERVAL_SECONDS, KeyProgressView, format_progress
from oncehouse.column_types.parser import parse_type
from oncehouse.sync.backfill.backfill import SMALLEST_CHUNK, next_chunk
from oncehouse.sync.backfill.checkpoint import BackfillCheckpoint
from oncehouse.sync.backfill.progress import KeyProgress
from oncehouse.sync.table.compare import _hashed
from oncehouse.sync.verify.advice import advise
from oncehouse.sync.verify.verify import Difference, SyncVerifyReport


@given(size=st.integers(1, 1_000_000), seconds=st.floats(0, 1e6), lease=st.floats(1, 3600))
def test_a_chunk_grows_never_and_shrinks_only_when_the_lease_is_in_danger(size, seconds, lease):
    after = next_chunk(size, seconds, lease)
    assert 0 < after <= size
    assert after == size or (seconds >= lease / 3 and after >= SMALLEST_CHUNK)
    assert after < size or size <= SMALLEST_CHUNK or seconds < lease / 3


def test_a_line_tells_how_far_it_is_and_how_long_it_takes():
    half = KeyProgress(sync="OrderSync", doing="backfill", keys=500, estimate=1_000)
    assert format_progress(half, 100.0) == (
        "OrderSync: backfill: 500 of about 1,000 keys (50%), 100/s, 5 s left"
    )
    assert format_progress(KeyProgress(sync="S", doing="backfill"), None) == (
        "S: backfill: 0 of about 0 keys"
    )


def test_lines_keep_an_interval_and_are_json_where_asked(capsys):
    now = [100.0]
    view = KeyProgressView(as_json=True, clock=lambda: now[0])
    plain = KeyProgressView(clock=lambda: now[0])
    with view, plain:
        for keys in (0, 10, 20):
            told = KeyProgress(sync="S", doing="backfill", keys=keys, estimate=20)
            view(told)
            plain(told)
            now[0] += INTERVAL_SECONDS / 2
    out, err = capsys.readouterr()
    assert [json.loads(line)["keys"] for line in out.splitlines()] == [0, 20]
    assert err.splitlines()[1] == "S: backfill: 20 of about 20 keys (100%), 4/s, 0 s left"


def test_how_much_is_done_is_a_share():
    assert BackfillCheckpoint(after=None, keys=0, estimate=0).share == 0.0
    assert BackfillCheckpoint(after="[1]", keys=30, estimate=20).share == 1.0


def make_report(**fields: object) -> SyncVerifyReport:
    differences = dict.fromkeys(Difference, ()) | fields.pop("differences", {})
    known = {"rows": 1, "ranges": 1, "differing_ranges": 0, "waiting": 0, "changing": 0, "complete": True}
    return SyncVerifyReport(sync="S", table="t", differences=differences, **{**known, **fields})


@pytest.mark.parametrize(
    ("fields", "clean", "words"),
    [
        ({}, True, []),
        (
            {"waiting": 2, "changing": 1},
            True,
            ["2 keys differ whose operations still wait", "1 keys changed"],
        ),
        ({"differences": {Difference.STALE: ("[1]",)}}, False, ["--repair"]),
        ({"differences": {Difference.DOUBLED: ("[1]",)}}, False, ["DEDUPLICATE"]),
        ({"differences": {Difference.MISSING: ("[1]",)}, "complete": False}, False, ["sync backfill"]),
    ],
)
def test_a_report_says_what_to_do(fields, clean, words):
    report = make_report(**fields)
    assert report.is_clean is clean
    advice = advise(report)
    assert len(advice) == len(words)
    assert all(word in told for word, told in zip(words, advice, strict=True))


@pytest.mark.parametrize(
    ("type_", "hashed"),
    [
        ("Int32", "`c`"),
        ("Nullable(Int32)", "isNull(`c`), ifNull(`c`, defaultValueOfTypeName('Int32'))"),
        ("Array(Nullable(String))", "`c`"),
        ("Array(Array(Int32))", "toString(`c`)"),
        ("Tuple(a Int32, b Nullable(String))", "toString(`c`)"),
        ("Map(String, Nullable(String))", "toString(`c`)"),
    ],
)
def test_nulls_are_hashed_apart_from_values(type_, hashed):
    assert _hashed("c", parse_type(type_)) == hashed
