"""A hint names the value at fault and what would fit, and never fails, whatever the letter holds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.dead_letters.hints import make_hint

FIELDS = {
    name: parse_type(text)
    for name, text in {
        "id": "UInt8",
        "price": "Nullable(Decimal(18, 2))",
        "paid": "Bool",
        "name": "String",
        "kind": "Enum8('click' = 1, 'view' = 2)",
        "tags": "Array(UInt8)",
    }.items()
}


def hint(detail, value, reason=Reason.WRONG_TYPE):
    raw = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return make_hint(reason, detail, raw, FIELDS)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("id", "12", 'id = "12"; 12 would fit'),
        ("id", "1,200", 'id = "1,200"; a number from 0 to 255 would fit'),
        ("id", -1, "id = -1; a number from 0 to 255 would fit"),
        ("id", 12.0, "id = 12.0; 12 would fit"),
        ("id", True, "id = true; 1 would fit"),
        ("id", "many", 'id = "many"'),
        ("price", "€ 12.50", 'price = "€ 12.50"; 12.50 would fit'),
        ("paid", "yes", 'paid = "yes"; true would fit'),
        ("paid", 0, "paid = 0; false would fit"),
        ("name", 7, 'name = 7; "7" would fit'),
        ("kind", "clik", 'kind = "clik"; "click" would fit'),
        ("kind", "zzz", 'kind = "zzz"; one of click, view would fit'),
        ("kind", {"deep": 1}, 'kind = {"deep": 1}'),
    ],
)
def test_the_value_is_named_with_the_nearest_form_that_fits(field, value, told):
    assert hint(f"field {field}: wrong", {field: value}) == told


def test_a_value_inside_another_is_found_by_its_path():
    assert hint("field tags[1]: a text cannot be UInt8", {"tags": [1, "x"]}) == 'tags[1] = "x"'
    assert hint("field a.b: wrong", {"a": {"b": "x"}}) == 'a.b = "x"'


def test_a_long_value_is_cut():
    assert len(hint("field name: wrong", {"name": ["x" * 1000]})) < 100


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"ID": 1}, "there is a 'ID' instead"),
        ({"prise": 1}, "the fields there are: prise"),
        ({}, "the fields there are: none"),
    ],
)
def test_a_missing_field_names_the_one_that_may_be_meant(message, told):
    assert hint("field id: missing or null", message, Reason.MISSING_FIELD) == told


def test_broken_json_is_shown_where_it_breaks():
    broken = b'{"id": 12 "name": 1}'
    assert (
        hint("Expecting ',' at character 11", broken, Reason.NOT_JSON)
        == "after '{\"id\": 12 ' comes '\"name\": 1}'"
    )
    assert hint("Expecting value at character 3", b'{"', Reason.NOT_JSON) == "the text ends after '{\"'"
    assert hint("Expecting value at character 1", b"no", Reason.NOT_JSON) == "the text begins with 'no'"


def test_bytes_that_are_no_text_are_shown_in_hex_from_where_they_break():
    value = b'{"id": "' + b"\xff\xfe" + b"x" * 40
    assert hint("", value, Reason.BAD_UTF8) == f"bytes from 4 on: 22 3a 20 22 ff fe{' 78' * 18} …"
    assert hint("", b"\xff", Reason.BAD_UTF8) == "bytes from 0 on: ff"


def test_a_letter_without_a_value_has_no_hint():
    assert hint("field id: missing", None) is None


@given(
    st.sampled_from(Reason),
    st.text() | st.builds("field {}: {} at character {}".format, st.text(), st.text(), st.integers(0, 99)),
    st.binary()
    | st.recursive(st.text() | st.integers() | st.none(), st.lists).map(lambda v: json.dumps(v).encode()),
)
def test_no_letter_makes_a_hint_fail(reason, detail, value):
    told = make_hint(reason, detail, value, FIELDS)
    assert told is None or isinstance(told, str)


@given(
    st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.booleans() | st.floats()), st.data()
)
def test_no_value_of_a_field_makes_a_hint_fail(more, data):
    field = data.draw(st.sampled_from(sorted(FIELDS)))
    value = data.draw(st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none())
    hint(f"field {field}: wrong", {**{k: str(v) for k, v in more.items()}, field: value})
