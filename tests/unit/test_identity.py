"""Ids: equal to SHA-256 of the encoding, different for different lists of values, stable for equal ones."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.columns import arrow_type, parse_type
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.identity import (
    check_identity,
    encode_identity,
    identity_fingerprint,
    payload_hashes,
    unique_ids,
)

KINDS = {
    "String": st.text(max_size=5) | st.sampled_from(["", "n;", "s1:", "i1;", "1", "\0"]),
    "Int32": st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2),
    "Int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    "UInt64": st.integers(0, 2**64 - 1) | st.integers(0, 2),
    "Bool": st.booleans(),
    "FixedString(2)": st.binary(min_size=2, max_size=2),
    "UUID": st.binary(min_size=16, max_size=16),
    "Decimal(9, 2)": st.decimals(-9999, 9999, places=2),
    "Decimal(60, 0)": st.integers(-(10**50), 10**50).map(decimal.Decimal),
    "Date": st.dates(dt.date(1970, 1, 1), dt.date(2149, 1, 1)),
    "DateTime": st.integers(0, 2**32 - 1),
    "DateTime64(6)": st.integers(0, 2**32 - 1) | st.integers(0, 2**50),
    "Float64": st.floats(allow_nan=False),
    "Float32": st.floats(allow_nan=False, width=32),
}  # fmt: skip
# What must share an id although the types differ: an integer is its value, whatever its width.
SAME = {"Int32": "integer", "Int64": "integer", "UInt64": "integer"}


@st.composite
def value_lists(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    return [(kind, draw(st.none() | KINDS[kind])) for kind in kinds]


def batch(values) -> tuple[pa.RecordBatch, list[str]]:
    names = [f"f{position}" for position in range(len(values))]
    arrays = [pa.array([value], arrow_type(parse_type(kind))) for kind, value in values]
    return pa.RecordBatch.from_arrays(arrays, names=names), names


def encoding(values) -> bytes:
    return encode_identity(*batch(values))[0].as_py()


def meaning(values) -> list[object]:
    return [None if value is None else (SAME.get(kind, kind), value) for kind, value in values]


@settings(max_examples=500, deadline=None)
@given(value_lists(), value_lists())
def test_encodings_are_equal_exactly_when_the_values_are(left, right):
    assert (encoding(left) == encoding(right)) == (meaning(left) == meaning(right))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ns1:;", max_size=4), min_size=1, max_size=4), st.data())
def test_letters_moved_over_a_boundary_make_another_encoding(texts, data):
    joined = "".join(texts)
    cuts = sorted(
        data.draw(st.lists(st.integers(0, len(joined)), min_size=len(texts) - 1, max_size=len(texts) - 1))
    )
    other = [joined[i:j] for i, j in zip([0, *cuts], [*cuts, len(joined)], strict=True)]
    same = encoding([("String", text) for text in texts]) == encoding([("String", text) for text in other])
    assert same == (texts == other)


@settings(max_examples=100, deadline=None)
@given(value_lists(), st.integers(1, 40))
def test_ids_are_the_first_sixteen_bytes_of_sha256_big_endian(values, copies):
    rows, names = batch(values)
    rows = pa.concat_batches([rows] * copies)
    high, low = unique_ids(rows, names)
    digest = hashlib.sha256(encoding(values)).digest()
    assert high.dtype == low.dtype == np.uint64
    assert set(high.tolist()) == {int.from_bytes(digest[:8], "big")}
    assert set(low.tolist()) == {int.from_bytes(digest[8:16], "big")}
    assert len(high) == len(low) == copies


def test_every_row_has_its_own_id_in_slices_and_after_nulls():
    rows = pa.record_batch({"a": pa.array(["x", None, "", "y"]), "b": pa.array([1, 2, None, 4], pa.int16())})
    whole = np.stack(unique_ids(rows, ["a", "b"]))
    expected = [b"s1:xi1;", b"n;i2;", b"s0:n;", b"s1:yi4;"]
    assert encode_identity(rows, ["a", "b"]).to_pylist() == expected
    assert whole[0].tolist() == [int.from_bytes(hashlib.sha256(e).digest()[:8], "big") for e in expected]
    assert np.stack(unique_ids(rows.slice(1, 2), ["a", "b"])).tolist() == whole[:, 1:3].tolist()


def test_a_known_event_keeps_its_id_for_ever():
    rows = pa.record_batch({"p": ["shop"], "e": ["view"], "n": pa.array([42], pa.int64())})
    high, low = unique_ids(rows, ["p", "e", "n"])
    assert encode_identity(rows, ["p", "e", "n"])[0].as_py() == b"s4:shops4:viewi42;"
    assert f"{int(high[0]):016x}{int(low[0]):016x}" == "9e288feb9752af244a55802a3c4d9860"


def test_sliced_floats_decimals_and_times_encode_their_own_rows():
    moments = [dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]
    rows = pa.record_batch(
        {
            "f": pa.array([1.0, None, 3.0]),
            "d": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("3.30")], pa.decimal128(5, 2)),
            "t": pa.array(moments, pa.timestamp("ms", "UTC")),
        }
    )
    names = ["f", "d", "t"]
    whole = encode_identity(rows, names).to_pylist()
    assert encode_identity(rows.slice(1), names).to_pylist() == whole[1:]
    assert whole[1].startswith(b"n;n;tms")
    assert whole[0][3:11] == b"\x3f\xf0" + bytes(6)


def test_no_rows_have_no_ids():
    rows = pa.record_batch({"a": pa.array([], pa.string())})
    assert [len(half) for half in unique_ids(rows, ["a"])] == [0, 0]
    assert len(payload_hashes(pa.array([], pa.binary()))) == 0


def test_minus_zero_is_zero():
    assert encoding([("Float64", -0.0)]) == encoding([("Float64", 0.0)])


def test_the_fingerprint_changes_with_what_ids_depend_on_and_nothing_else():
    def of(**fields: str) -> str:
        return identity_fingerprint(list(fields), {name: parse_type(text) for name, text in fields.items()})

    assert of(a="Int32") == of(a="Nullable(UInt64)")
    assert of(a="String") == of(a="LowCardinality(Nullable(String))")
    different = [
        of(a="Int64"),
        of(b="Int64"),
        of(a="String"),
        of(a="Int128"),
        of(a="UUID"),
        of(a="FixedString(16)"),
        of(a="DateTime64(3)"),
        of(a="DateTime64(6)"),
        of(a="DateTime64(3, 'Europe/Berlin')"),
        of(a="Decimal(9, 2)"),
        of(a="Decimal(9, 3)"),
        of(a="Int64", b="Int64"),
        of(b="Int64", a="Int64"),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "empty"),
        (["nope"], "does not declare"),
        (["s", "s"], "twice"),
        (["l"], "only scalar"),
        (["m"], "only scalar"),
        (["t"], "only scalar"),
    ],
)
def test_fields_that_cannot_identify_are_refused(fields, message):
    types = {"s": "String", "l": "Array(String)", "m": "Map(String, String)", "t": "Tuple(x Int8)"}
    with pytest.raises(ConfigurationError, match=message):
        check_identity(fields, {name: parse_type(text) for name, text in types.items()})


def test_payload_hashes_are_xxh3_and_the_same_in_every_process():
    values = pa.array([b"", b"a", None, b"abc", b"\xff" * 300], pa.binary())
    hashes = payload_hashes(values)
    assert hashes.dtype == np.uint64
    # Published test values of XXH3 with 64 bits and seed 0.
    assert f"{int(hashes[0]):016x}" == "2d06800538d394c2"
    assert f"{int(hashes[3]):016x}" == "78af5f94892f3950"
    assert hashes[2] == 0
    assert payload_hashes(values.slice(3)).tolist() == hashes[3:].tolist()
    assert payload_hashes(values.cast(pa.large_binary())).tolist() == hashes.tolist()
