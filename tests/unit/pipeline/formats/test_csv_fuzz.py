"""Whatever bytes: lines of CSV and text are rows or rejections, and no message reaches into the next."""

from __future__ import annotations

import csv
import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from lines_examples import TWO, decode, decode_csv, unfold
from oncehouse.config.formats import Csv, Text
from oncehouse.pipeline.formats.csv.decoder import make_csv_format
from oncehouse.pipeline.formats.text import make_text_format


@given(
    st.lists(
        st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), min_size=1, max_size=4),
        min_size=1,
        max_size=8,
    )
)
@examples(60)
def test_what_pythons_writer_writes_is_read_back(messages):
    texts = []
    for message in messages:
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(message)
        texts.append(out.getvalue().encode("utf-8", "surrogatepass"))
    decoded = decode_csv({"a": "String", "b": "String"}, texts)
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [
        row for one in messages for row in one
    ]


@given(st.lists(st.text('ab",\n\r;é', max_size=30) | st.binary(max_size=20), min_size=1, max_size=20))
@examples(80)
def test_any_bytes_are_rows_or_rejections_and_no_message_reaches_into_the_next(messages):
    values = [one if isinstance(one, bytes) else one.encode() for one in messages]
    fields = {"a": "String", "b": "Nullable(String)"}
    format_ = make_csv_format(Csv(), tuple(fields))
    block, decoded = unfold(format_, values), decode(format_, fields, values)
    places = [*decoded.taken.tolist(), *(one.index for one in decoded.rejected)]
    assert sorted(places) == list(range(block.num_rows))
    alone = [row for value in values for row in decode(format_, fields, [value]).rows.to_pylist()]
    assert decoded.rows.to_pylist() == alone


@pytest.mark.parametrize("bomb", [b'"' * 1_000_000, b'"",' * 300_000, b"," * 1_000_000, b'a"\n' * 30_000])
def test_a_bomb_takes_no_memory_and_no_neighbour(bomb):
    tracemalloc.start()
    decoded = decode_csv(TWO, [b"1,a", bomb, b"2,b"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 << 20
    assert [row["id"] for row in decoded.rows.to_pylist()] == [1, 2]


@given(st.lists(st.binary(max_size=40), max_size=20))
@examples(100)
def test_any_bytes_are_a_text_or_a_rejection(values):
    for pattern in (None, r"(?P<line>[a-z]*)(?P<x>\d)?"):
        fields = {"line": "String"} if pattern is None else {"x": "Nullable(Int8)", "line": "String"}
        decoded = decode(make_text_format(Text(pattern=pattern)), fields, list(values))
        assert len(decoded.taken) + len(decoded.rejected) == len(values)
