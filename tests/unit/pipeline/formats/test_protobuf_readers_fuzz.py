"""Messages of every kind of field next to the protobuf library: the same rows and the same refusals."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.protobuf.fields import WRAPPERS, is_map, is_message, message_of
from protobuf_examples import block, derived, make_decoder, message_class, schema
from protobuf_wire import bodies, damaged
from reference_protobuf import list_rows, read_protobuf
from reference_readers import REJECTED, UNSURE, comparable, kept_cases

FILE = "kinds.proto"
MESSAGES = ["Singles", "Choices", "Lists", "Maps", "KnownTypes"]


@cache
def declared(message: str, *, as_json: bool) -> dict[str, str]:
    """With `as_json`, messages are taken as their JSON; maps and wrappers have none of their own."""
    types = derived(FILE, f"kinds.{message}")
    if not as_json:
        return types
    known = message_class(FILE, f"kinds.{message}").DESCRIPTOR.fields_by_name
    for name, field in known.items():
        if is_message(field) and not is_map(field) and message_of(field).full_name not in WRAPPERS:
            types[name] = "Array(String)" if field.is_repeated else "Nullable(String)"
    return types


@cache
def decoder(message: str, *, as_json: bool):
    return make_decoder(declared(message, as_json=as_json), [schema("1", FILE, f"kinds.{message}")])


def ours(message: str, values: list[bytes], *, as_json: bool) -> list[Any]:
    """A row or REJECTED for each message."""
    decoded = decoder(message, as_json=as_json).decode(block(values))
    columns = {name: list_rows(decoded.rows.column(name)) for name in declared(message, as_json=as_json)}
    rows: list[Any] = [REJECTED] * len(values)
    for number, place in enumerate(decoded.taken.tolist()):
        rows[place] = {name: column[number] for name, column in columns.items()}
    assert len(decoded.taken) + len(decoded.rejected) == len(values)
    return rows


def compare(message: str, values: list[bytes], *, as_json: bool) -> None:
    class_ = message_class(FILE, f"kinds.{message}")
    types = {name: parse_type(text) for name, text in declared(message, as_json=as_json).items()}
    for value, row in zip(values, ours(message, values, as_json=as_json), strict=True):
        theirs = read_protobuf(class_, value, types)
        if theirs is not UNSURE:
            assert comparable(theirs) == comparable(row), (message, value.hex(), as_json)


@pytest.mark.parametrize("message", MESSAGES)
@given(st.data(), st.booleans())
@examples(15)
def test_every_message_is_the_row_that_the_library_makes_of_it(message, data, as_json):
    descriptor = message_class(FILE, f"kinds.{message}").DESCRIPTOR
    compare(message, data.draw(st.lists(bodies(descriptor), min_size=1, max_size=4)), as_json=as_json)


@pytest.mark.parametrize("message", MESSAGES)
@given(st.data(), st.booleans())
@examples(12)
def test_damaged_messages_are_read_or_refused_as_the_library_does(message, data, as_json):
    descriptor = message_class(FILE, f"kinds.{message}").DESCRIPTOR
    values = data.draw(st.lists(damaged(descriptor) | bodies(descriptor), min_size=1, max_size=4))
    compare(message, values, as_json=as_json)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("case", kept_cases("protobuf.jsonl"), ids=lambda case: case["why"])
def test_what_the_library_once_read_otherwise(case, as_json):
    compare(case["message"], [bytes.fromhex(case["bytes"])], as_json=as_json)
