"""Decimals at the limits of Arrow's JSON reader: far exponents, which lead out of its table, and many digits."""

from __future__ import annotations

import multiprocessing
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.convert.decimals import exact_decimal
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.formats.json import decoder as json_decode
from oncehouse.pipeline.formats.json.arrow_limits import count_digits
from oncehouse.pipeline.formats.json.decoder import JsonDecoder

FAR = ["1e-1000000000", '"1e-2147483647"', "0E-1000000000", "0e-39", '"-.5e-00040"', "[1e-77]"]


def decode(type_: str, *values: str, least_uniform: int = 500):
    fields = {"a": parse_type(type_), "f": parse_type("Nullable(Float64)")}
    json_decode.LEAST_UNIFORM = least_uniform
    decoder = JsonDecoder(fields=fields, max_message_bytes=1 << 20, max_depth=64)
    decoded = decoder.decode(pa.array([f'{{"a":{value}}}'.encode() for value in values], pa.binary()))
    return decoded.rows.column(0).to_pylist(), [
        (found.index, found.reason, found.detail) for found in decoded.rejected
    ]


@pytest.mark.parametrize("least_uniform", [1, 500])
@pytest.mark.parametrize("type_", ["Decimal(18, 2)", "Decimal(38, 10)", "Decimal(76, 20)", "Int256"])
def test_a_number_with_a_far_exponent_is_a_dead_letter_and_costs_nobody_else(type_, least_uniform):
    """In a process of its own, which such a number used to end."""
    values = ["7", *FAR[:-1], "8"] if least_uniform > 1 else ['"7"', *FAR[:-1], '"8"']
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        waiting = pool.apply_async(decode, (type_, *values), {"least_uniform": least_uniform})
        rows, rejected = waiting.get(timeout=60)
    assert len(rows) == 2
    assert rejected == [
        (index, Reason.OUT_OF_RANGE, "field a: an exponent below -38") for index in range(1, len(FAR))
    ]


def test_far_exponents_are_found_inside_of_arrays():
    rows, rejected = decode("Array(Decimal(18, 2))", "[1]", FAR[-1])
    assert len(rows) == 1
    assert [(index, reason) for index, reason, _ in rejected] == [(1, Reason.OUT_OF_RANGE)]


def test_floats_texts_and_undeclared_keys_may_have_any_exponent():
    fields = {"a": parse_type("Decimal(18, 2)"), "f": parse_type("Float64"), "s": parse_type("String")}
    decoder = JsonDecoder(fields=fields, max_message_bytes=1 << 20, max_depth=64)
    message = b'{"a":150e-2,"f":1e-300,"s":"1e-1000000000","u":1e-200,"n":[1e-99]}'
    decoded = decoder.decode(pa.array([message], pa.binary()))
    assert not decoded.rejected
    assert str(decoded.rows.column(0)[0].as_py()) == "1.50"
    assert decoded.rows.column(1)[0].as_py() == 1e-300


def test_what_is_no_json_is_refused_as_such_even_with_a_far_exponent():
    """Arrow's reader takes `Inf`, so that it would have met the number before it."""
    _, rejected = decode("Decimal(18, 2)", '1e-1000000000,"f":Inf')
    assert [(index, reason) for index, reason, _ in rejected] == [(0, Reason.NOT_JSON)]


@pytest.mark.parametrize("least_uniform", [1, 500])
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("Decimal(18, 0)", "0.1e-38"),
        ("Decimal(18, 0)", '"0.00000000000000001e-30"'),
        ("Decimal(30, 4)", f"0.{'0' * 74}1e-9"),
        ("Int256", f"0.{'0' * 74}1e-5"),
    ],
)
def test_places_behind_the_point_count_with_the_exponent(type_, value, least_uniform):
    """Arrow's table of powers ends at 38 or 76: `0.1e-38` was read as 0."""
    rows, rejected = decode(type_, "7", value, "8", least_uniform=least_uniform)
    assert len(rows) == 2
    assert [(index, reason) for index, reason, _ in rejected] == [(1, Reason.OUT_OF_RANGE)]


LONG_ZEROS = [
    "12.3400000000",
    '"12.3400000000"',
    "123400000000000e-13",
    "12.3400000000e0",
    f"12.34{'0' * 72}",
]


@pytest.mark.parametrize("least_uniform", [1, 500])
@pytest.mark.parametrize("type_", ["Decimal(10, 4)", "Decimal(30, 4)", "Decimal(50, 4)", "Decimal(76, 4)"])
@pytest.mark.parametrize("value", LONG_ZEROS)
def test_zeros_at_the_end_cost_no_value_however_it_is_read(value, type_, least_uniform):
    """Alone, between others, in a block of its like, and nested: it is exactly 12.34."""
    exact = Decimal("12.34")
    assert decode(type_, value, least_uniform=least_uniform) == ([exact], [])
    assert decode(type_, "7", value, "8", least_uniform=least_uniform) == (
        [Decimal(7), exact, Decimal(8)],
        [],
    )
    assert decode(type_, *[value] * 600, least_uniform=least_uniform) == ([exact] * 600, [])
    assert decode(f"Array({type_})", "[7]", f"[{value}]") == ([[Decimal(7)], [exact]], [])
    assert decode(f"Map(String, {type_})", f'{{"x":{value}}}') == ([[("x", exact)]], [])
    assert decode(f"Tuple(x {type_})", f'{{"x":{value}}}') == ([{"x": exact}], [])
    assert decode(f"Nullable({type_})", "null", value) == ([None, exact], [])


@pytest.mark.parametrize("type_", ["Decimal(10, 4)", "Decimal(30, 4)", "Decimal(76, 4)", "Int256"])
@pytest.mark.parametrize("value", [f"1.{'0' * 76}", "0e77"])
def test_more_written_digits_than_the_reader_holds_are_out_of_range(type_, value):
    _, alone = decode(type_, value)
    rows, rejected = decode(type_, "7", value, "8")
    assert len(rows) == 2
    assert alone == [(0, Reason.OUT_OF_RANGE, "field a: more than 76 digits as it is written")]
    assert rejected == [(1, *alone[0][1:])]
    _, nested = decode(f"Array({type_})", f"[{value}]")
    assert nested == [(0, Reason.OUT_OF_RANGE, "field a[0]: more than 76 digits as it is written")]


@given(
    digits=st.text("0123456789", min_size=1, max_size=80),
    point=st.integers(0, 80),
    exponent=st.one_of(st.none(), st.integers(-45, 80)),
    type_=st.sampled_from(
        ["Decimal(9, 2)", "Decimal(18, 0)", "Decimal(18, 18)", "Decimal(50, 20)", "Decimal(76, 30)"]
    ),
)
def test_the_reader_decides_as_exact_decimal_wherever_it_can_hold_the_digits(digits, point, exponent, type_):
    text = f"{digits[:point] or '0'}.{digits[point:]}" if point < len(digits) else digits
    text += "" if exponent is None else f"e{exponent}"
    leaf = parse_type(type_)
    expected = exact_decimal(text, leaf)
    rows, rejected = decode(type_, f'"{text}"')
    if rows:
        assert rows == [expected]
    else:
        assert [reason for _, reason, _ in rejected] == [Reason.OUT_OF_RANGE]
        if exponent is None and count_digits(text) <= 76:
            assert expected is Reason.OUT_OF_RANGE
