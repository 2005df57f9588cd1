"""Protobuf schemas out of a registry: with their imports, by the indexes of the prefix, and never in the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncehouse.config.protobuf import Protobuf
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.pipeline.formats.protobuf.schema_sources import fetch_from_registry
from oncehouse.protobuf.definition import describe, read_definition
from protobuf_examples import FOLDER
from registry import Registry, running_registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def ask(registry: Registry, *names: str, **more: object) -> dict[str, str]:
    section = Protobuf(version="prefix", registry={"url": registry.url, "timeout": 5, **more})
    return {
        schema.schema: read_definition(schema.definition).message
        for schema in fetch_from_registry(section, names)
    }


def text(name: str) -> str:
    return (FOLDER / name).read_text()


def test_a_schema_comes_with_what_it_imports_and_by_its_indexes(registry):
    registry.register("order", text("order_v3.proto"), kind="PROTOBUF", number=3)
    registry.register(
        "order4",
        text("order_v4.proto"),
        kind="PROTOBUF",
        number=7,
        references=[("order_v3.proto", "order", 1)],
    )
    assert ask(registry, "3", "7", "7:1", "7:1.0") == {
        "3": "shop.Buyer",
        "7": "shop.Order4",
        "7:1": "shop.Other",
        "7:1.0": "shop.Other.Inner",
    }


def test_a_definition_from_a_registry_holds_all_that_it_needs(registry):
    registry.register("order", text("order_v3.proto"), kind="PROTOBUF", number=3)
    section = Protobuf(version="prefix", registry={"url": registry.url, "timeout": 5})
    (schema,) = fetch_from_registry(section, ["3:1"])
    assert describe(read_definition(schema.definition)).fields_by_name["at"].message_type.name == "Timestamp"


def test_what_cannot_be_used_waits_and_leaves_the_others_alone(registry):
    registry.register("good", 'syntax = "proto3"; message Good { int32 x = 1; }', kind="PROTOBUF", number=1)
    registry.register("broken", "message {", kind="PROTOBUF", number=2)
    registry.register("avro", {"type": "string"}, number=3)
    registry.register(
        "lost", 'import "gone.proto";', kind="PROTOBUF", number=4, references=[("gone.proto", "x", 1)]
    )
    registry.register("out", "", kind="PROTOBUF", number=5, references=[("../../out.proto", "good", 1)])
    names = ["1", "1:7", "2", "3", "4", "5", "99", "v1", "99999999999"]
    # A header may say anything.
    names += ["", ":", "1:", "1:x", "1:0.", "1:-1", "1:0:0", "1" * 5000, "1:" + "9" * 5000, "row:1"]
    assert ask(registry, *names) == {"1": "Good"}


def test_a_registry_that_is_away_is_asked_later_and_a_wrong_password_is_told(registry):
    registry.register("good", 'syntax = "proto3"; message Good { int32 x = 1; }', kind="PROTOBUF", number=1)
    registry.answers = [(503, b"")] * 4
    with pytest.raises(TransientError, match="503"):
        ask(registry, "1")
    assert ask(registry, "1") == {"1": "Good"}
    registry.credentials = "me:right"
    with pytest.raises(ConfigurationError, match="refuses the user"):
        ask(registry, "1", user="me", password="wrong")
