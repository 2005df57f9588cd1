"""Schemas in the catalog: written once, never changed."""

from __future__ import annotations

import time

import pytest

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.known_schemas import add_schemas, list_schemas
from oncehouse.ledger.models import Schema

FIRST = Schema(schema="1", format="protobuf", definition="one")
SECOND = Schema(schema="2", format="protobuf", definition="two")


def test_schemas_are_listed_as_they_became_known(catalog):
    assert add_schemas(catalog, [SECOND]) == (SECOND,)
    time.sleep(0.01)  # SQLite's clock tells milliseconds
    assert add_schemas(catalog, [FIRST, SECOND]) == (FIRST,), "only what is new is written"
    assert [(found.schema, found.definition) for found in list_schemas(catalog)] == [
        ("2", "two"),
        ("1", "one"),
    ]


def test_another_definition_under_a_known_name_is_refused_and_nothing_is_written(catalog):
    add_schemas(catalog, [FIRST])
    other = Schema(schema="1", format="protobuf", definition="changed")
    with pytest.raises(ConfigurationError, match="'1' with another definition"):
        add_schemas(catalog, [SECOND, other])
    assert [found.schema for found in list_schemas(catalog)] == ["1"]


@pytest.mark.parametrize("name", ["row:1", "", "1" * 300, "a\nb"])
def test_a_name_that_means_something_else_or_cannot_be_kept_is_refused(catalog, name):
    with pytest.raises(ConfigurationError, match="cannot"):
        add_schemas(catalog, [FIRST, Schema(schema=name, format="avro", definition="x")])
    assert list_schemas(catalog) == ()
