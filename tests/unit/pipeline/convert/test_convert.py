"""A value fits its declared type exactly, or its row is marked: nothing is rounded, wrapped or guessed."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import Integer, arrow_type
from oncehouse.pipeline.convert.convert import convert
from oncehouse.pipeline.convert.value_errors import explain_value, find_problem

D = decimal.Decimal
BAD = object()
UTC = dt.UTC
INTEGERS = [f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)]
NARROW = [pa.type_for_alias(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


def converted(values, source, declared):
    """What each value becomes, with BAD where it does not fit."""
    type_ = parse_type(declared)
    array = pa.array(values, source) if source is not None else pa.array(values)
    result = convert(array, type_)
    result.array.validate(full=not pa.types.is_string(result.array.type))
    assert result.array.type == arrow_type(type_)
    assert len(result.array) == len(values)
    rows = readable(result.array, type_)
    bad = result.bad if result.bad is not None else np.zeros(len(values), dtype=bool)
    return [BAD if wrong else row for row, wrong in zip(rows, bad.tolist(), strict=True)]


def readable(array, type_):
    if isinstance(type_, Integer) and type_.bits > 64:
        return [
            None if row is None else int.from_bytes(row, "little", signed=type_.signed)
            for row in array.to_pylist()
        ]
    return array.to_pylist()


# -- integers ---------------------------------------------------------------------------------------------


@given(st.sampled_from(INTEGERS), st.sampled_from(NARROW), st.data())
def test_integers_keep_their_value_in_another_width_or_are_bad(declared, source, data):
    signed, bits = pa.types.is_signed_integer(source), source.bit_width
    least, greatest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    type_ = parse_type(declared)
    edges = [least, greatest, 0, type_.least, type_.greatest, type_.least - 1, type_.greatest + 1]
    possible = st.sampled_from([edge for edge in edges if least <= edge <= greatest])
    values = data.draw(st.lists(possible | st.integers(least, greatest), max_size=6))
    expected = [value if type_.least <= value <= type_.greatest else BAD for value in values]
    assert converted(values, source, declared) == expected


@given(st.sampled_from(INTEGERS), st.data())
def test_texts_of_digits_are_integers_of_any_width(declared, data):
    type_ = parse_type(declared)
    edges = st.sampled_from(
        [type_.least, type_.greatest, type_.least - 1, type_.greatest + 1, 10**76, 10**90]
    )
    values = data.draw(st.lists(edges | st.integers(-(2**260), 2**260), max_size=5))
    expected = [value if type_.least <= value <= type_.greatest else BAD for value in values]
    assert converted([str(value) for value in values], pa.string(), declared) == expected


@pytest.mark.parametrize("text", ["", " 1", "1 ", "0x10", "1.0", "1e3", "\u0661", "--1", "+-1", "one"])
@pytest.mark.parametrize("declared", ["Int8", "UInt64", "Int256"])
def test_other_texts_are_no_integers(text, declared):
    assert converted([text], pa.string(), declared) == [BAD]


@pytest.mark.parametrize("declared", ["Int8", "Int64", "Int128"])
def test_signs_and_leading_zeros_change_no_integer(declared):
    assert converted(["+7", "-007", "000", "-0"], pa.string(), declared) == [7, -7, 0, 0]


@given(st.sampled_from(INTEGERS), st.lists(st.floats() | st.integers(-(2**70), 2**70).map(float), max_size=6))
def test_only_whole_floats_in_range_are_integers(declared, values):
    type_ = parse_type(declared)
    expected = [
        int(value)
        if math.isfinite(value) and value == int(value) and type_.least <= int(value) <= type_.greatest
        else BAD
        for value in values
    ]
    assert converted(values, pa.float64(), declared) == expected


@given(
    st.sampled_from(INTEGERS),
    st.lists(st.decimals(-(10**38), 10**38, places=4, allow_nan=False).map(lambda value: value), max_size=6),
)
def test_only_whole_decimals_in_range_are_integers(declared, values):
    type_ = parse_type(declared)
    expected = [
        int(value) if value == int(value) and type_.least <= int(value) <= type_.greatest else BAD
        for value in values
    ]
    assert converted(values, pa.decimal256(60, 4), declared) == expected


def test_booleans_are_zero_and_one_and_the_other_way_round():
    assert converted([True, False, None], pa.bool_(), "Nullable(UInt8)") == [1, 0, None]
    assert converted([1, 0, 2, -1], pa.int64(), "Bool") == [True, False, BAD, BAD]
    assert converted(["true", "FALSE", "yes", ""], pa.string(), "Bool") == [True, False, BAD, BAD]
    assert converted([1.0], pa.float64(), "Bool") == [BAD]


# -- floats -----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(), max_size=6))
def test_doubles_are_single_floats_only_when_nothing_is_lost(values):
    found = converted(values, pa.float64(), "Float32")
    for value, got in zip(values, found, strict=True):
        with np.errstate(over="ignore"):
            narrow = float(np.float32(value))
        if math.isnan(value):
            assert math.isnan(got)
        else:
            assert got == (value if narrow == value else BAD)


@pytest.mark.parametrize("declared", ["Float32", "Float64"])
def test_nan_and_infinities_stay_what_they_are(declared):
    nan, *rest = converted([math.nan, math.inf, -math.inf, -0.0], pa.float64(), declared)
    assert math.isnan(nan)
    assert rest[:2] == [math.inf, -math.inf]
    assert math.copysign(1, rest[2]) == -1


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6))
def test_integers_are_floats_only_when_the_float_is_that_number(values):
    expected = [float(value) if int(float(value)) == value else BAD for value in values]
    assert converted(values, pa.int64(), "Float64") == expected


def test_the_greatest_integers_are_no_floats():
    assert converted([2**64 - 1, 2**63, 2**53 + 1], pa.uint64(), "Float64") == [BAD, 2.0**63, BAD]
    assert converted([2**24, 2**24 + 1, -(2**24) - 1], pa.int32(), "Float32") == [2.0**24, BAD, BAD]


def test_texts_of_numbers_are_the_nearest_float_but_never_infinite_by_accident():
    texts = ["0.1", "1e400", "-inf", "x", ""]
    assert converted(texts, pa.string(), "Float64") == [0.1, BAD, -math.inf, BAD, BAD]
    assert math.isnan(converted(["NaN"], pa.string(), "Float64")[0])
    assert converted(["1e39", "0.5"], pa.string(), "Float32") == [BAD, 0.5]


def test_decimals_are_floats_where_the_float_still_tells_their_digits():
    values = [D("0.1"), D("1234567890123456789.1"), D("-2.5")]
    assert converted(values, pa.decimal128(30, 1), "Float64") == [0.1, BAD, -2.5]


# -- decimals ---------------------------------------------------------------------------------------------

DECIMALS = st.sampled_from([(5, 2), (9, 9), (18, 0), (38, 0), (38, 2), (38, 38), (76, 0), (76, 20), (76, 76)])


def decimal_or_bad(value, precision, scale):
    with decimal.localcontext(prec=400):
        moved = value.scaleb(scale)
        fits = moved == moved.to_integral_value() and abs(moved) < 10**precision
    return value if fits else BAD


@given(DECIMALS, DECIMALS, st.data())
def test_decimals_keep_every_digit_in_another_precision_or_are_bad(source, declared, data):
    unscaled = data.draw(
        st.lists(
            st.integers(-(10 ** source[0]) + 1, 10 ** source[0] - 1)
            | st.builds(
                lambda digit, zeros: digit * 10**zeros, st.integers(0, 9), st.integers(0, source[0] - 1)
            ),
            max_size=6,
        )
    )
    with decimal.localcontext(prec=100):
        values = [D(value).scaleb(-source[1]) for value in unscaled]
    kind = pa.decimal128(*source) if source[0] <= 38 else pa.decimal256(*source)
    expected = [decimal_or_bad(value, *declared) for value in values]
    assert converted(values, kind, "Decimal({}, {})".format(*declared)) == expected


@given(DECIMALS, st.data())
def test_texts_are_decimals_digit_by_digit(declared, data):
    texts = data.draw(
        st.lists(
            st.from_regex(r"[+-]?[0-9]{1,80}(\.[0-9]{0,80})?", fullmatch=True, alphabet="0159+-.")
            | st.from_regex(
                r"-?[0-9]{1,5}(\.[0-9]{1,5})?[eE][+-]?[0-9]{1,3}", fullmatch=True, alphabet="0159+-.eE"
            ),
            max_size=5,
        )
    )
    expected = [decimal_or_bad(D(text), *declared) for text in texts]
    assert converted(texts, pa.string(), "Decimal({}, {})".format(*declared)) == expected


@given(DECIMALS, st.lists(st.text("0159+-.,/ ", max_size=12), max_size=4))
@examples(200)
def test_short_texts_are_decimals_only_where_they_are_written_like_one(declared, texts):
    written = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")
    expected = [decimal_or_bad(D(text), *declared) if written.fullmatch(text) else BAD for text in texts]
    assert converted(texts, pa.string(), "Decimal({}, {})".format(*declared)) == expected


@given(DECIMALS, st.integers(1, 90), st.integers(0, 90))
@examples(200)
def test_a_decimal_of_many_digits_never_wraps_around(declared, whole, behind):
    """Alone, so that no neighbour sends it another way; nines and a one differ in where they wrap."""
    for text in ("9" * whole + "." + "9" * behind, "1" + "0" * whole, "-" + "9" * whole):
        expected = decimal_or_bad(D(text), *declared)
        assert converted([text], pa.string(), "Decimal({}, {})".format(*declared)) == [expected]


@pytest.mark.parametrize("unusual", ["abc", "", "1e2", "0" * 50 + "7", "1.005", None])
@pytest.mark.parametrize("places", [{0}, {4999}, {1, 2500, 2501}])
def test_an_unusual_text_among_many_costs_no_other_its_value(unusual, places):
    texts = [unusual if row in places else f"{row}.25" for row in range(5000)]
    (alone,) = converted([unusual], pa.string(), "Nullable(Decimal(18, 2))")
    expected = [alone if row in places else D(f"{row}.25") for row in range(5000)]
    assert converted(texts, pa.string(), "Nullable(Decimal(18, 2))") == expected


@pytest.mark.parametrize("text", ["1e-77", "1e-1000000000", "1.e-2147483647", "1e2147483647"])
def test_a_decimal_with_a_far_exponent_is_bad(text):
    """Arrow's cast would look beyond its table of powers: zero at best, the end of the process at worst."""
    assert converted([text], pa.string(), "Decimal(18, 2)") == [BAD]


@pytest.mark.parametrize("text", ["", ".", "-", "1,5", "NaN", "1e", "0x1", "1 "])
def test_other_texts_are_no_decimals(text):
    assert converted([text], pa.string(), "Decimal(10, 2)") == [BAD]


def test_floats_are_decimals_by_their_shortest_digits():
    values = [0.1, 2.675, math.nan, math.inf, 1e22, 1e-7, 12345.0]
    assert converted(values, pa.float64(), "Decimal(10, 3)") == [
        D("0.100"),
        D("2.675"),
        BAD,
        BAD,
        BAD,
        BAD,
        D(12345),
    ]
    assert converted([1e22, 1e-7], pa.float64(), "Decimal(40, 7)") == [D(10**22), D("0.0000001")]


# -- texts and bytes --------------------------------------------------------------------------------------


def test_any_bytes_are_a_string():
    array = convert(pa.array([b"\xff\x00", b"", "ß".encode(), None]), parse_type("Nullable(String)")).array
    assert array.cast(pa.binary()).to_pylist() == [b"\xff\x00", b"", "ß".encode(), None]
    assert converted([1], pa.int64(), "String") == [BAD]


@pytest.mark.parametrize(
    "source", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_texts_come_in_every_layout(source):
    assert converted(["a", "😀", ""], source, "LowCardinality(String)") == ["a", "😀", ""]


def test_fixed_strings_are_filled_up_and_never_cut():
    assert converted(["ab", "", "abc", "abcd"], pa.string(), "FixedString(3)") == [
        b"ab\0",
        b"\0\0\0",
        b"abc",
        BAD,
    ]
    assert converted([b"\xff\0", b"1234"], pa.binary(), "FixedString(3)") == [b"\xff\0\0", BAD]
    assert converted([b"abcd"], pa.binary(4), "FixedString(3)") == [BAD]
    assert converted([b"abc"], pa.binary(3), "FixedString(3)") == [b"abc"]


def test_a_uuid_comes_as_text_bytes_or_itself():
    one = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    texts = [str(one), str(one).upper(), one.hex, "", f"{one}0"]
    assert converted(texts, pa.string(), "UUID") == [one.bytes, one.bytes, BAD, BAD, BAD]
    assert converted([one.bytes, b"short", one.bytes + b"x"], pa.binary(), "UUID") == [one.bytes, BAD, BAD]
    assert converted([one.bytes], pa.binary(16), "UUID") == [one.bytes]
    assert converted([one.bytes], pa.uuid(), "UUID") == [one.bytes]


def test_an_enum_comes_by_name_or_by_number():
    declared = "Enum16('new' = -3, 'paid' = 7, '' = 300)"
    assert converted(["new", "", "gone"], pa.string(), declared) == ["new", "", BAD]
    assert converted([-3, 7, 300, 0, 2**40], pa.int64(), declared) == ["new", "paid", "", BAD, BAD]
    assert converted([2**64 - 1], pa.uint64(), declared) == [BAD]


# -- times ------------------------------------------------------------------------------------------------


def test_dates_end_where_clickhouse_ends_them():
    days = [dt.date(1970, 1, 1), dt.date(2149, 6, 6), dt.date(1969, 12, 31), dt.date(2149, 6, 7)]
    assert converted(days, pa.date32(), "Date") == [*days[:2], BAD, BAD]
    wide = [dt.date(1900, 1, 1), dt.date(2299, 12, 31), dt.date(1899, 12, 31), dt.date(2300, 1, 1)]
    assert converted(wide, pa.date64(), "Date32") == [*wide[:2], BAD, BAD]
    assert converted([str(day) for day in wide] + ["1.1.2000"], pa.string(), "Date32") == [
        *wide[:2],
        BAD,
        BAD,
        BAD,
    ]


def test_a_time_is_a_date_only_at_midnight_where_it_was_written():
    midnight, noon = dt.datetime(2024, 1, 2), dt.datetime(2024, 1, 2, 12)  # noqa: DTZ001 - without a zone
    assert converted([midnight, noon], pa.timestamp("us"), "Date") == [dt.date(2024, 1, 2), BAD]
    berlin = dt.datetime(2024, 1, 1, 23, tzinfo=UTC)
    assert converted([berlin], pa.timestamp("us", "Europe/Berlin"), "Date") == [dt.date(2024, 1, 2)]


SECONDS = {"DateTime": (0, 2**32 - 1), "DateTime64(3)": (-2208988800, 10413791999)}


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("declared", SECONDS)
def test_times_end_where_clickhouse_ends_them(unit, declared):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    least, greatest = SECONDS[declared]
    ticks = [least * per_second, greatest * per_second, least * per_second - 1, (greatest + 1) * per_second]
    type_ = parse_type(declared)
    result = convert(pa.array(ticks, pa.timestamp(unit, "UTC")), type_)
    assert result.bad.tolist() == [False, False, True, True]
    back = result.array.cast(pa.timestamp("s", "UTC"), safe=False).view(pa.int64()).to_pylist()
    assert back[:2] == [least, greatest]


def test_the_finest_times_end_in_2262():
    least, greatest = -2208988800 * 10**9, 2**63 - 1
    type_ = parse_type("DateTime64(9)")
    result = convert(pa.array([least, greatest, least - 1, -(2**63)], pa.timestamp("ns", "UTC")), type_)
    assert result.bad.tolist() == [False, False, True, True]
    assert result.array.view(pa.int64()).to_pylist()[:2] == [least, greatest]
    beyond = pa.array([10**10, 9223372036], pa.timestamp("s", "UTC"))
    assert convert(beyond, type_).bad.tolist() == [True, False]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("ticks", [-(2**63), -(2**63) + 5])
def test_zones_do_not_wrap_ancient_times_around(zone, ticks):
    type_ = parse_type(f"DateTime64(9, '{zone}')")
    assert convert(pa.array([ticks], pa.timestamp("ns")), type_).bad.tolist() == [True]
    assert convert(pa.array([ticks], pa.timestamp("ns", zone)), parse_type("Date32")).bad.tolist() == [True]


def test_what_is_finer_than_the_column_is_cut_off_towards_the_past():
    ticks = pa.array([1_999_999_999, -1], pa.timestamp("ns", "UTC"))
    assert convert(ticks, parse_type("DateTime64(3)")).array.view(pa.int64()).to_pylist() == [1999, -1]
    assert convert(ticks, parse_type("DateTime64(1)")).array.view(pa.int64()).to_pylist() == [1900, -100]


def test_times_without_a_zone_are_read_in_the_columns_zone():
    noon = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - without a zone
    ten = dt.datetime(2024, 7, 1, 10, tzinfo=UTC)
    assert converted([noon], pa.timestamp("ms"), "DateTime('Europe/Berlin')") == [ten]
    assert converted([dt.date(2024, 7, 1)], pa.date32(), "DateTime('Europe/Berlin')") == [
        dt.datetime(2024, 6, 30, 22, tzinfo=UTC)
    ]
    assert converted(["2024-07-01T12:00:00"], pa.string(), "DateTime('Europe/Berlin')") == [ten]


def test_integers_count_the_columns_ticks():
    assert converted([0, 2**32], pa.uint64(), "DateTime") == [dt.datetime(1970, 1, 1, tzinfo=UTC), BAD]
    assert converted([2**64 - 1], pa.uint64(), "DateTime64(0)") == [BAD]
    assert converted([15], pa.int16(), "DateTime64(1)") == [dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)]


# -- null and nested --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared", ["Int64", "String", "UUID", "Date", "Enum8('a' = 1)", "Decimal(5, 2)", "Tuple(a Int8)"]
)
def test_null_needs_a_nullable_type(declared):
    assert converted([None], None, declared) == [BAD]
    if not declared.startswith("Tuple"):
        assert converted([None], None, f"Nullable({declared})") == [None]


def test_missing_lists_and_maps_are_empty():
    assert converted([None], None, "Array(Int8)") == [[]]
    assert converted([None], None, "Map(String, Int8)") == [[]]
    assert converted([None, [1]], pa.list_(pa.int64()), "Array(Int8)") == [[], [1]]


@pytest.mark.parametrize(
    "source",
    [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2), pa.list_view(pa.int64())],
)
def test_a_bad_item_costs_its_own_row(source):
    values = [[1, 2], [300, 4], [5, 6], None]
    assert converted(values, source, "Array(Int8)") == [[1, 2], BAD, [5, 6], []]
    sliced = convert(pa.array(values, source).slice(1, 2), parse_type("Array(Int8)"))
    assert sliced.bad.tolist() == [True, False]
    assert sliced.array.to_pylist()[1] == [5, 6]


def test_items_under_a_null_are_not_seen():
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3]), pa.array([1, 300, 3]), mask=pa.array([False, True, False])
    )
    result = convert(lists, parse_type("Array(Int8)"))
    assert result.bad is None
    assert result.array.to_pylist() == [[1], [], [3]]


def test_maps_keep_their_pairs_and_refuse_a_key_twice():
    source = pa.map_(pa.string(), pa.int64())
    values = [[("a", 1), ("b", 2)], [("a", 1), ("a", 2)], [("a", 300)], []]
    assert converted(values, source, "Map(String, Int8)") == [[("a", 1), ("b", 2)], BAD, BAD, []]
    sliced = convert(pa.array(values, source).slice(2), parse_type("Map(String, Int8)"))
    assert sliced.bad.tolist() == [True, False]


def test_tuples_are_taken_by_name():
    source = pa.struct([("b", pa.int64()), ("a", pa.string()), ("more", pa.int8())])
    values = [{"b": 1, "a": "x"}, {"b": 300, "a": "y"}, {"b": None, "a": "z"}]
    assert converted(values, source, "Tuple(a String, b Int8, c Nullable(Int8))") == [
        {"a": "x", "b": 1, "c": None},
        BAD,
        BAD,
    ]
    assert converted([1], pa.int64(), "Tuple(a String)") == [BAD]
    assert converted([1], pa.int64(), "Array(Int8)") == [BAD]
    assert converted(["x"], pa.string(), "Map(String, Int8)") == [BAD]


TYPES = st.sampled_from(
    [*INTEGERS, "Float32", "Decimal(38, 4)", "Bool", "String", "FixedString(2)", "UUID", "Date", "Date32",
     "DateTime", "DateTime64(9)", "Enum8('a' = 1)", "Nullable(Int8)", "Array(Nullable(Int8))",
     "Array(Array(String))", "Map(String, Array(Int8))", "Tuple(a Array(Int8))"]
)  # fmt: skip
KINDS = st.sampled_from(
    [*NARROW, pa.float16(), pa.float64(), pa.decimal128(38, 3), pa.decimal256(76, 70), pa.bool_(), pa.string(),
     pa.binary(), pa.binary(16), pa.date32(), pa.date64(), pa.timestamp("ns"), pa.timestamp("s", "Asia/Kolkata"),
     pa.time64("ns"), pa.time32("s"), pa.duration("us")]
)  # fmt: skip


def array_of_bytes(kind, data):
    """A value of the kind made of raw bytes, and a null."""
    if kind in (pa.string(), pa.binary()):
        return pa.array([data[:3].hex() if kind == pa.string() else data[:3], None], kind)
    return pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x01"), pa.py_buffer(data)])


@given(TYPES, KINDS, st.binary(min_size=64, max_size=64))
def test_no_array_of_any_kind_raises_and_every_bad_row_is_explained(declared, kind, data):
    array = array_of_bytes(kind, data)
    type_ = parse_type(declared)
    result = convert(array, type_)
    assert result.array.type == arrow_type(type_)
    for row in np.flatnonzero(result.bad if result.bad is not None else []).tolist():
        assert explain_value(array[row], type_)


@pytest.mark.parametrize(
    ("value", "declared", "reason", "detail"),
    [
        (300, "Int8", "out_of_range", "n: outside of Int8"),
        ("x", "Int8", "wrong_type", "n: this text cannot be Int8"),
        ("300", "Int8", "out_of_range", "n: outside of Int8"),
        (None, "Int8", "missing_field", "n: missing or null, Int8 needs a value"),
        ("1.005", "Decimal(5, 2)", "out_of_range", "n: outside of Decimal(5, 2)"),
        ("1,5", "Decimal(5, 2)", "wrong_type", "n: this text cannot be Decimal(5, 2)"),
        (b"abc", "UUID", "out_of_range", "n: outside of UUID"),
        (1.5, "Int8", "out_of_range", "n: outside of Int8"),
        (1.5, "String", "wrong_type", "n: a value of double cannot be String"),
        ("1899-01-01", "Date32", "out_of_range", "n: outside of Date32"),
        ("soon", "DateTime", "wrong_type", "n: this text cannot be DateTime"),
        ([1, 300], "Array(Int8)", "out_of_range", "n[1]: outside of Int8"),
        ({"a": {"b": [None]}}, "Tuple(a Tuple(b Array(Int8)))", "missing_field",
         "n.a.b[0]: missing or null, Int8 needs a value"),
        (5, "Array(Int8)", "wrong_type", "n: a value of int64 cannot be Array(Int8)"),
    ],
)  # fmt: skip
def test_a_misfit_is_told_by_its_place_and_kind(value, declared, reason, detail):
    problem = find_problem(pa.array([value]), 0, parse_type(declared), "n")
    assert (str(problem.reason), problem.detail) == (reason, detail)


def test_a_misfit_inside_a_map_is_told_too():
    scalar = pa.array([[("a", 1), ("b", 300)]], pa.map_(pa.string(), pa.int64()))[0]
    assert explain_value(scalar, parse_type("Map(String, Int8)")) == "[value 1]: outside of Int8"
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))[0]
    assert explain_value(twice, parse_type("Map(String, Int8)")) == "a key stands twice"
