"""Numbers with exponents that would lead Arrow's decimals out of their table, and end the process."""

from __future__ import annotations

import multiprocessing

import pyarrow as pa
import pytest

from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.formats.json import decoder as json_decode
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
