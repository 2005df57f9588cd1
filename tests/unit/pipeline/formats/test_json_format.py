"""JSON Lines: several rows in one message, each with a place of its own."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.pipeline.formats.base import HEADERS, split_runs
from oncehouse.pipeline.formats.json.format import JsonFormat, split_lines


def unfold(*values: bytes | None) -> list[tuple[int, int, bytes | None]]:
    block = pa.record_batch(
        [pa.array(range(10, 10 + len(values)), pa.int64()), pa.array(values, pa.binary())],
        ["offset", "value"],
    )
    found = JsonFormat(lines=True).unfold(block)
    return [(row["offset"], row["row"], row["value"]) for row in found.to_pylist()]


def test_each_line_is_a_row_of_its_message():
    assert unfold(b'{"a":1}\n{"a":2}', b'{"a":3}') == [
        (10, 0, b'{"a":1}'),
        (10, 1, b'{"a":2}'),
        (11, 0, b'{"a":3}'),
    ]


@pytest.mark.parametrize("blank", [b"", b"\r", b" \t"])
def test_blank_lines_are_no_rows(blank: bytes):
    assert unfold(blank + b"\n{}\n" + blank + b"\n[]\n") == [(10, 0, b"{}"), (10, 1, b"[]")]


@pytest.mark.parametrize("nothing", [b"", b"\n", b" \n\r\n"])
def test_a_message_of_blank_lines_stays_one_row_so_that_it_does_not_vanish(nothing: bytes):
    ((offset, row, value),) = unfold(nothing)
    assert (offset, row) == (10, 0)
    assert value is not None
    assert not value.strip()


def test_a_tombstone_stays_a_tombstone():
    assert unfold(None, b"{}\n{}", None) == [(10, 0, None), (11, 0, b"{}"), (11, 1, b"{}"), (12, 0, None)]


def test_one_object_a_message_is_row_0_of_it():
    block = pa.record_batch([pa.array([b"{}\n{}"], pa.binary())], ["value"])
    assert JsonFormat().unfold(block).to_pylist() == [{"value": b"{}\n{}", "row": 0}]


@given(st.lists(st.none() | st.binary(max_size=20) | st.text("ab\n \r", max_size=12).map(str.encode)))
def test_lines_are_those_that_python_splits(values: list[bytes | None]):
    expected = []
    for value in values:
        lines = [] if value is None else [line for line in value.split(b"\n") if line.strip(b" \t\r")]
        expected.append(lines or [None if value is None else value.split(b"\n")[0]])
    sliced = pa.array([b"before", *values], pa.binary()).slice(1)
    assert split_lines(sliced).to_pylist() == expected


LINES = 2_000


def make_bomb(**beside: pa.Array) -> pa.RecordBatch:
    columns = {"offset": pa.array([10, 11]), "value": pa.array([b"1\n" * LINES, b"{}"], pa.binary())}
    return pa.RecordBatch.from_pydict(columns | beside)


BESIDE = {
    "key": pa.array([b"k" * 100_000, b"key"], pa.binary()),
    "headers": pa.array([[{"key": "h", "value": b"v" * 100_000}], [{"key": "h", "value": b"v"}]], HEADERS),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_stands_beside_many_lines_is_not_repeated_with_each(name: str):
    before = pa.total_allocated_bytes()
    found = JsonFormat(lines=True).unfold(make_bomb(**{name: BESIDE[name]}))
    assert pa.total_allocated_bytes() - before < 50 << 20
    column = found.column(name)
    assert found.num_rows == LINES + 1
    assert column.null_count == LINES - 1
    assert column.take(pa.array([0, LINES])).to_pylist() == BESIDE[name].to_pylist()


def test_messages_of_many_lines_are_cut_into_runs_that_fit_into_memory():
    many = pa.record_batch(
        {"value": pa.array([b"\n" * 1_000_000, None, b"{}", b"\n" * 100_000] * 3, pa.binary())}
    )
    runs = list(split_runs(many))
    assert [run.num_rows for run in runs] == [1, 3, 1, 3, 1, 3]
    assert pa.Table.from_batches(runs).combine_chunks().to_batches()[0].equals(many)
