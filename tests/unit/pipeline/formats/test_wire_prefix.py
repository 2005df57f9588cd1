"""Messages are split by schema in a number of passes that does not depend on how many schemas they name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.pipeline.formats.wire_prefix import (
    SchemasAndBodies,
    VersionPlace,
    VersionSource,
    split_messages,
    split_versions,
)

PREFIX = VersionSource(place=VersionPlace.PREFIX)


def split(values: list[bytes]) -> tuple[list[int], dict[str, list[tuple[int, bytes]]]]:
    """Places without a schema, and (place, body) by schema."""
    block = pa.record_batch([pa.array(values, pa.binary())], names=["value"])
    unnamed, found = split_versions(split_messages(block, PREFIX))
    places = np.arange(len(values))
    return unnamed.tolist(), {
        name: list(zip(places[mine].tolist(), bodies.to_pylist(), strict=True))
        for name, mine, bodies in found
    }


@given(st.lists(st.tuples(st.integers(-1, 4), st.binary(max_size=3)), max_size=40))
def test_messages_are_split_as_one_by_one(messages):
    values = [b"\0" + n.to_bytes(4, "big") + body if n >= 0 else b"\1" for n, body in messages]
    expected: dict[str, list[tuple[int, bytes]]] = {}
    for place, (number, body) in enumerate(messages):
        if number >= 0:
            expected.setdefault(str(number), []).append((place, body))
    unnamed, found = split(values)
    assert unnamed == [place for place, (number, _) in enumerate(messages) if number < 0]
    assert found == expected


def test_sixty_thousand_schemas_in_a_block_are_split_by_one_copy():
    numbers = np.random.default_rng(7).permutation(60_000).tolist()
    values = [b"\0" + number.to_bytes(4, "big") + str(number).encode() for number in numbers]
    block = pa.record_batch([pa.array(values, pa.binary())], names=["value"])
    unnamed, found = split_versions(split_messages(block, PREFIX))
    assert not len(unnamed)
    assert [(name, mine.tolist(), bodies.to_pylist()) for name, mine, bodies in found] == [
        (str(number), [place], [str(number).encode()]) for place, number in enumerate(numbers)
    ]
    assert len({bodies.buffers()[2].address for _, _, bodies in found}) == 1, "bodies are copied by schema"


def test_a_block_without_any_schema_names_none():
    framed = SchemasAndBodies(pa.nulls(3, pa.string()), pa.array([b"a", b"b", b"c"]))
    unnamed, found = split_versions(framed)
    assert (unnamed.tolist(), found) == ([0, 1, 2], [])
