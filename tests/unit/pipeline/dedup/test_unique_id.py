"""Ids: equal to SHA-256 of the encoding, different for different lists of values, stable for equal ones."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import arrow_type
from oncehouse.common.hashing import xxh3_hashes
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.dedup.identity_rule import Rule, fingerprint, resolve_fields
from oncehouse.pipeline.dedup.unique_id import (
    encode_identity,
    find_header,
    reject_unidentified,
    unique_ids,
)
from oncehouse.pipeline.formats.base import HEADERS, Decoded

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


def rule(*names: str, **more) -> Rule:
    return Rule(fields=tuple((name,) for name in names), **more)


def batch(values) -> tuple[Rule, pa.RecordBatch]:
    names = [f"f{position}" for position in range(len(values))]
    arrays = [pa.array([value], arrow_type(parse_type(kind))) for kind, value in values]
    return rule(*names), pa.RecordBatch.from_arrays(arrays, names=names)


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
    asked, rows = batch(values)
    rows = pa.concat_batches([rows] * copies)
    high, low = unique_ids(asked, rows)
    digest = hashlib.sha256(encoding(values)).digest()
    assert high.dtype == low.dtype == np.uint64
    assert set(high.tolist()) == {int.from_bytes(digest[:8], "big")}
    assert set(low.tolist()) == {int.from_bytes(digest[8:16], "big")}
    assert len(high) == len(low) == copies


def test_every_row_has_its_own_id_in_slices_and_after_nulls():
    rows = pa.record_batch({"a": pa.array(["x", None, "", "y"]), "b": pa.array([1, 2, None, 4], pa.int16())})
    whole = np.stack(unique_ids(rule("a", "b"), rows))
    expected = [b"s1:xi1;", b"n;i2;", b"s0:n;", b"s1:yi4;"]
    assert encode_identity(rule("a", "b"), rows).to_pylist() == expected
    assert whole[0].tolist() == [int.from_bytes(hashlib.sha256(e).digest()[:8], "big") for e in expected]
    assert np.stack(unique_ids(rule("a", "b"), rows.slice(1, 2))).tolist() == whole[:, 1:3].tolist()


@pytest.mark.parametrize("others", [[], ["x" * 300]])
def test_long_texts_are_encoded_as_short_ones_are(others):
    texts = ["", "ä", "x" * 255, "x" * 256, None, *others]
    found = encode_identity(rule("a"), pa.record_batch({"a": pa.array(texts)})).to_pylist()
    assert found == [
        b"n;" if text is None else b"s%d:%s" % (len(text.encode()), text.encode()) for text in texts
    ]
    assert encode_identity(rule("a"), pa.record_batch({"a": pa.array(texts[:3])})).to_pylist() == found[:3]


def test_a_known_event_keeps_its_id_for_ever():
    rows = pa.record_batch({"p": ["shop"], "e": ["view"], "n": pa.array([42], pa.int64())})
    high, low = unique_ids(rule("p", "e", "n"), rows)
    assert encode_identity(rule("p", "e", "n"), rows)[0].as_py() == b"s4:shops4:viewi42;"
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
    asked = rule("f", "d", "t")
    whole = encode_identity(asked, rows).to_pylist()
    assert encode_identity(asked, rows.slice(1)).to_pylist() == whole[1:]
    assert whole[1].startswith(b"n;n;tms")
    assert whole[0][3:11] == b"\x3f\xf0" + bytes(6)


def test_no_rows_have_no_ids():
    rows = pa.record_batch({"a": pa.array([], pa.string())})
    assert [len(half) for half in unique_ids(rule("a"), rows)] == [0, 0]
    assert len(xxh3_hashes(pa.array([], pa.binary()))) == 0


def test_minus_zero_is_zero():
    assert encoding([("Float64", -0.0)]) == encoding([("Float64", 0.0)])


def test_the_fingerprint_changes_with_what_ids_depend_on_and_nothing_else():
    def of(**fields: str) -> str:
        types = {name: parse_type(text) for name, text in fields.items()}
        return fingerprint(rule(*fields), types)

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
        resolve_fields(fields, {name: parse_type(text) for name, text in types.items()})


USER = {
    "user": parse_type("Tuple(id UInt32, home Tuple(city Nullable(String)))"),
    "user.id": parse_type("String"),
}


def test_a_path_leads_through_tuples_and_a_field_of_that_very_name_comes_first():
    assert resolve_fields(["user.home.city", "user.id"], USER) == (("user", "home", "city"), ("user.id",))
    plain = {"user": USER["user"]}
    assert resolve_fields(["user.id"], plain) == (("user", "id"),)
    with pytest.raises(ConfigurationError, match=r"'user\.home', which is Tuple.*only scalar"):
        resolve_fields(["user.home"], plain)
    with pytest.raises(ConfigurationError, match=r"'user\.name', which source\.fields does not declare"):
        resolve_fields(["user.name"], plain)


def test_a_value_inside_a_tuple_is_encoded_like_any_other_and_a_missing_tuple_as_null():
    values = pa.array([{"id": 7, "home": {"city": "Ulm"}}, {"id": 8, "home": None}], arrow_type(USER["user"]))
    rows = pa.record_batch({"user": values})
    asked = Rule(fields=(("user", "id"), ("user", "home", "city")))
    assert encode_identity(asked, rows).to_pylist() == [b"i7;s3:Ulm", b"i8;n;"]
    assert encode_identity(asked, rows.slice(1)).to_pylist() == [b"i8;n;"]


def records(*headers, keys=None) -> pa.RecordBatch:
    listed = pa.array(
        [None if found is None else [{"key": k, "value": v} for k, v in found] for found in headers], HEADERS
    )
    return pa.record_batch({"headers": listed, "key": pa.array(keys or [None] * len(headers), pa.binary())})


HEADER_LISTS = st.none() | st.lists(
    st.tuples(st.sampled_from(["id", "trace", ""]), st.none() | st.binary(max_size=3)), max_size=4
)


@settings(max_examples=200, deadline=None)
@given(st.lists(HEADER_LISTS, max_size=6), st.integers(0, 3))
def test_the_last_header_of_a_name_counts(lists, start):
    found = find_header(records(*lists).column("headers").slice(start), "id").to_pylist()
    assert found == [dict(headers or []).get("id") for headers in lists[start:]]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=3), st.binary(max_size=3), st.text("s1:;n", max_size=3)),
        min_size=2,
        max_size=2,
    )
)
def test_headers_key_field_and_version_never_flow_into_each_other(events):
    headers, keys, texts = zip(*events, strict=True)
    beside = records(*([("id", value)] for value in headers), keys=list(keys))
    rows = pa.record_batch({"a": pa.array(texts)})
    asked = rule("a", headers=("id",), key=True, schema_version=True)
    left, right = encode_identity(asked, rows, beside, pa.array(["1", "1"])).to_pylist()
    assert (left == right) == (events[0] == events[1])
    other = encode_identity(asked, rows, beside, pa.array(["2", None])).to_pylist()
    assert other[0] != left
    assert other[1] != right


def test_the_fingerprint_tells_headers_key_version_and_paths_apart():
    types = {"a": parse_type("String"), "b": parse_type("Tuple(c String)"), "b.c": parse_type("String")}
    rules = [
        rule("a"),
        rule("a", key=True),
        rule("a", headers=("key",)),
        rule("a", headers=("key", "id")),
        rule("a", headers=("id", "key")),
        rule("a", schema_version=True),
        rule("b.c"),
        Rule(fields=(("b", "c"),)),
        Rule(key=True),
        rule("a", normalize="nfc"),
    ]
    assert len({fingerprint(asked, types) for asked in rules}) == len(rules)


def ids_of(asked: Rule, *columns: pa.Array) -> list[tuple[int, int]]:
    rows = pa.RecordBatch.from_arrays(list(columns), names=[f"f{place}" for place in range(len(columns))])
    return list(zip(*(half.tolist() for half in unique_ids(asked, rows)), strict=True))


COMPOSED, DECOMPOSED = "caf\u00e9 \uac00", "cafe\u0301 \u1100\u1161"
NANS = np.array(
    [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF], dtype=np.uint64
)


def test_without_normalize_texts_and_nan_count_by_their_bytes_as_ever():
    texts = pa.array([COMPOSED, DECOMPOSED, "abc", None])
    found = ids_of(rule("f0"), texts)
    assert len(set(found)) == 4
    assert ids_of(rule("f0", normalize="none"), texts) == found
    assert len(set(ids_of(rule("f0"), pa.array(NANS.view(np.float64))))) == len(NANS)


@pytest.mark.parametrize("kind", ["String", "Nullable(String)", "LowCardinality(String)"])
def test_normalize_makes_one_id_of_the_ways_to_write_a_text(kind):
    asked = rule("f0", "f1", normalize="nfc")
    texts = pa.array([COMPOSED, DECOMPOSED, "CAFÉ 가", "caf\u00e9", None, ""], arrow_type(parse_type(kind)))
    found = ids_of(asked, texts, pa.array(range(6)))
    assert len(set(found)) == 6
    same = ids_of(rule("f0", normalize="nfc"), texts)
    assert same[0] == same[1]
    assert len(set(same)) == 5
    plain = ids_of(rule("f0"), texts)
    assert [same[place] for place in (0, 2, 3, 4, 5)] == [plain[place] for place in (0, 2, 3, 4, 5)]


def test_normalize_makes_one_id_of_all_nan_and_leaves_other_numbers_alone():
    for width, bits in (
        (np.float64, NANS),
        (np.float32, np.array([0x7FC00000, 0xFFC00001], dtype=np.uint32)),
    ):
        asked = rule("f0", normalize="nfc")
        assert len(set(ids_of(asked, pa.array(bits.view(width))))) == 1
        numbers = pa.array([0.0, -0.0, 1.5, float("inf"), None, float("nan")], pa.from_numpy_dtype(width))
        assert ids_of(asked, numbers) == ids_of(rule("f0"), numbers)


def test_normalize_leaves_bytes_that_are_no_text_as_they_are():
    offsets = pa.py_buffer(np.array([0, 2, 2 + len(DECOMPOSED.encode())], dtype=np.int32))
    texts = pa.Array.from_buffers(
        pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\x00" + DECOMPOSED.encode())]
    )
    found = ids_of(rule("f0", normalize="nfc"), texts)
    assert found[0] == ids_of(rule("f0"), texts)[0]
    assert found[1] == ids_of(rule("f0"), pa.array([COMPOSED]))[0]
    fixed = pa.array([b"\xff\x00", b"e\xcc"], pa.binary(2))
    assert ids_of(rule("f0", normalize="nfc"), fixed) == ids_of(rule("f0"), fixed)


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_normalize_is_what_unicodedata_says(texts):
    expected = [unicodedata.normalize("NFC", text) for text in texts]
    # Python's Unicode may be older than Arrow's; characters that it does not know say nothing.
    if any(unicodedata.category(character) == "Cn" for text in texts for character in text):
        return
    assert ids_of(rule("f0", normalize="nfc"), pa.array(texts)) == ids_of(rule("f0"), pa.array(expected))


def test_a_record_without_the_key_or_a_header_of_the_rule_has_no_identity():
    beside = records(
        [("id", b"1")],
        None,
        [("id", None)],
        [("id", b"")],
        [("id", b"4")],
        keys=[b"k", b"k", b"k", b"k", None],
    )
    decoded = Decoded(
        rows=pa.record_batch({"a": pa.array(["0", "2", "3", "4"])}),
        taken=np.array([0, 2, 3, 4]),
        rejected=(),
        skipped=np.array([1]),
        schemas=pa.array(["v1", "v1", "v2", "v2"]),
    )
    judged = reject_unidentified(rule("a", headers=("id",), key=True), beside, decoded)
    assert judged.rows.column("a").to_pylist() == ["0", "3"], "an empty header is a value"
    assert judged.taken.tolist() == [0, 3]
    assert judged.schemas is not None
    assert judged.schemas.to_pylist() == ["v1", "v2"]
    assert [(found.index, found.detail) for found in judged.rejected] == [
        (2, "header 'id', which belongs to the identity, is missing"),
        (4, "the key, which belongs to the identity, is missing"),
    ]
    assert reject_unidentified(rule("a"), beside, decoded) is decoded


def test_payload_hashes_are_xxh3_and_the_same_in_every_process():
    values = pa.array([b"", b"a", None, b"abc", b"\xff" * 300], pa.binary())
    hashes = xxh3_hashes(values)
    assert hashes.dtype == np.uint64
    # Published test values of XXH3 with 64 bits and seed 0.
    assert f"{int(hashes[0]):016x}" == "2d06800538d394c2"
    assert f"{int(hashes[3]):016x}" == "78af5f94892f3950"
    assert hashes[2] == 0
    assert xxh3_hashes(values.slice(3)).tolist() == hashes[3:].tolist()
    assert xxh3_hashes(values.cast(pa.large_binary())).tolist() == hashes.tolist()
