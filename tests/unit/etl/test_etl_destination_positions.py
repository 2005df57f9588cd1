"""Facts whose rows can be found by the positions of their sources."""

from __future__ import annotations

import pytest

from oncehouse.clickhouse.table_info import Column, TableFacts
from oncehouse.etl.steps.destination_check import shows_positions
from table_facts import make_table_facts


def facts_of(**types: str) -> TableFacts:
    return make_table_facts(
        database="dwh",
        table="orders",
        uuid="6a0b8c1e-0000-4000-8000-000000000000",
        columns=tuple(Column(name=name, type=type_, default_kind="") for name, type_ in types.items()),
        sorting_key="id",
        window_blocks=100,
    )


@pytest.mark.parametrize("id_", ["UInt64", "Int32", "Nullable(UInt64)", "UInt8"])
def test_a_fact_with_pos_and_a_number_as_id_shows_positions(id_):
    assert shows_positions(facts_of(pos="DateTime64(3)", id=id_))


@pytest.mark.parametrize("id_", ["UUID", "String", "UInt128", "Nullable(UUID)", "Array(UInt64)"])
def test_an_id_of_another_kind_is_no_position(id_):
    assert not shows_positions(facts_of(pos="DateTime64(3)", id=id_))


def test_both_columns_are_needed():
    assert not shows_positions(facts_of(pos="DateTime64(3)"))
    assert not shows_positions(facts_of(id="UInt64"))
