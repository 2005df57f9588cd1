"""Which ClickHouse type a column of PostgreSQL gets, and that it is one that the pipeline knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.messaging.cdc.column_types import PostgresColumn, choose_type


def numeric(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("type_name", "modifier", "expected"),
    [
        ("int2", -1, "Int16"),
        ("int8", -1, "Int64"),
        ("bool", -1, "Bool"),
        ("float4", -1, "Float32"),
        ("text", -1, "String"),
        ("varchar", 24, "String"),
        ("jsonb", -1, "String"),
        ("bytea", -1, "String"),
        ("interval", -1, "String"),
        ("uuid", -1, "UUID"),
        ("date", -1, "Date32"),
        ("timestamp", -1, "DateTime64(6, 'UTC')"),
        ("timestamp", 3, "DateTime64(3, 'UTC')"),
        ("timestamp", 0, "DateTime64(0, 'UTC')"),
        ("timestamptz", 3, "DateTime64(6, 'UTC')"),
        ("time", -1, "Int64"),
        ("bit", 1, "Bool"),
        ("bit", 5, "String"),
        ("varbit", -1, "String"),
        ("numeric", -1, "String"),
        ("numeric", numeric(12, 2), "Decimal(12, 2)"),
        ("numeric", numeric(3, 5), "Decimal(5, 5)"),
        ("numeric", numeric(5, -2), "String"),
        ("numeric", numeric(100, 2), "String"),
        ("point", -1, None),
    ],
)
def test_a_column_gets_a_type_that_holds_all_its_values(type_name, modifier, expected):
    made = PostgresColumn(name="c", type_name=type_name, modifier=modifier, not_null=True)
    assert choose_type(made) == expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (PostgresColumn(name="c", type_name="int4"), "Nullable(Int32)"),
        (PostgresColumn(name="c", type_name="int4", is_array=True), "Array(Nullable(Int32))"),
        (PostgresColumn(name="c", type_name="mood", is_enum=True), "LowCardinality(Nullable(String))"),
        (PostgresColumn(name="c", type_name="mood", is_enum=True, not_null=True), "LowCardinality(String)"),
        (PostgresColumn(name="c", type_name="mood", is_enum=True, is_array=True), "Array(Nullable(String))"),
        (PostgresColumn(name="c", type_name="point", is_array=True), None),
    ],
)
def test_nulls_arrays_and_labels_have_their_place(column, expected):
    assert choose_type(column) == expected


@given(
    st.builds(
        PostgresColumn,
        name=st.just("c"),
        type_name=st.sampled_from(
            ["numeric", "timestamp", "int4", "text", "bit", "uuid", "money", "unheard_of"]
        ),
        modifier=st.integers(-1, 1 << 27),
        not_null=st.booleans(),
        is_enum=st.booleans(),
        is_array=st.booleans(),
    )
)
def test_every_type_that_is_chosen_can_be_declared(column):
    if column.type_name == "timestamp" and column.modifier > 6:
        return  # PostgreSQL knows no finer ticks
    chosen = choose_type(column)
    if chosen is not None:
        parse_type(chosen)
