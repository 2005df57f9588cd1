"""Whatever the bytes: every message is accounted for, and none depends on its neighbours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.formats.base import Decoded
from oncehouse.pipeline.formats.json import decoder as json_decode
from oncehouse.pipeline.formats.json.brackets import measure_depth
from oncehouse.pipeline.formats.json.decoder import JsonDecoder

FIELDS = {
    "n": "Int64",
    "s": "Nullable(String)",
    "t": "Nullable(DateTime64(3, 'Europe/Berlin'))",
    "d": "Nullable(Decimal(6, 2))",
    "f": "Nullable(Float32)",
    "u": "Nullable(UInt128)",
    "l": "Array(Nullable(Int8))",
    "o": "Array(Tuple(k Nullable(FixedString(3)), v Array(Int64)))",
}
WITH_MAP = FIELDS | {"m": "Map(String, Array(Nullable(Int64)))"}

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1e40, 1e-7, 12.345]),
)
TIMES = st.sampled_from(
    [
        "2024-01-01",
        "2024-01-01T00:00:00Z",
        "2024-03-31 02:30:00",
        "2024-01-01T00:00:00.123456+02:00",
        "2262-04-12T00Z",
    ]
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, NUMBERS.map(str), TIMES, st.text(max_size=4))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["k", "v", "n", "x\n"]), inner, max_size=3),
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from([*WITH_MAP, "other"]), VALUES, max_size=6)
FITTING = st.fixed_dictionaries(
    {"n": st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9).map(str)},
    optional={
        "s": st.text(max_size=4),
        "t": TIMES | st.integers(-(2**40), 2**40),
        "d": st.decimals(-9999, 9999, places=2).map(str) | st.integers(-9999, 9999),
        "f": st.floats(-1e30, 1e30),
        "u": st.integers(0, 2**128 - 1),
        "l": st.lists(st.none() | st.integers(-128, 127), max_size=3),
        "o": st.lists(
            st.fixed_dictionaries(
                {"k": st.text("ab", max_size=3), "v": st.lists(st.integers(0, 9), max_size=2)}
            )
        ),
        "m": st.dictionaries(st.text(max_size=3), st.lists(st.integers(0, 9), max_size=2), max_size=3),
    },
)


@st.composite
def damaged(draw):
    """A JSON text with a few bytes changed, taken out or put in."""
    text = bytearray(json.dumps(draw(OBJECTS)).encode())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(text)))
        text[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b'"', b"{", b"}", b"\n", b"\\", b","])
        )
    return bytes(text)


MESSAGES = st.one_of(
    FITTING.map(lambda value: json.dumps(value).encode()),
    FITTING.map(lambda value: json.dumps(value, indent=1, ensure_ascii=False).encode(errors="replace")),
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    damaged(),
    st.binary(max_size=12),
    st.none(),
    st.lists(
        st.sampled_from([b'{"n":1', b"}", b"{", b'"', b"\n", b"\0", b"[", b"]", b",", b"Inf", b'{"n":"1"}'])
    ).map(b"".join),
)


def make(fields: dict[str, str]) -> JsonDecoder:
    types = {name: parse_type(text) for name, text in fields.items()}
    return JsonDecoder(fields=types, max_message_bytes=2000, max_depth=6)


DECODERS = [make(FIELDS), make(WITH_MAP)]
LEAST_UNIFORM = st.sampled_from([1, json_decode.LEAST_UNIFORM])
"""By the layout of messages wherever that can be, and by the parser."""


@contextmanager
def reading_alike(least: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_decode, "LEAST_UNIFORM", least)
        patch.setattr(json_decode, "_MOST_UNTRIED_BLOCKS", 0)
        yield


def outcome(done: Decoded) -> dict[int, object]:
    """Place -> what became of it; rows compared by their text, because JSON's numbers may be -0.0."""
    found: dict[int, object] = {int(place): "skipped" for place in done.skipped}
    found |= {rejection.index: (rejection.reason, rejection.detail) for rejection in done.rejected}
    found |= {int(place): repr(row) for place, row in zip(done.taken, done.rows.to_pylist(), strict=True)}
    assert len(found) == len(done.skipped) + len(done.rejected) + len(done.taken)
    return found


@examples(300)
@given(st.lists(MESSAGES, max_size=8), st.sampled_from(DECODERS), LEAST_UNIFORM, LEAST_UNIFORM)
def test_every_message_has_one_outcome_and_the_same_alone(messages, decoder, least, least_alone):
    with reading_alike(least):
        done = decoder.decode(pa.array(messages, pa.binary()))
    together = outcome(done)
    assert sorted(together) == list(range(len(messages)))
    assert (np.diff(done.taken) > 0).all()
    assert done.rows.schema == decoder.schema
    done.rows.validate(full=True)
    with reading_alike(least_alone):
        for place, message in enumerate(messages):
            alone = outcome(decoder.decode(pa.array([message], pa.binary())))
            assert alone == {0: together[place]}


@examples(200)
@given(st.lists(FITTING, min_size=1, max_size=6), LEAST_UNIFORM)
def test_what_fits_the_declared_fields_is_taken_with_its_values(events, least):
    for decoder in DECODERS:
        with reading_alike(least):
            done = decoder.decode(pa.array([json.dumps(event).encode() for event in events], pa.binary()))
        assert done.taken.tolist() == list(range(len(events)))
        assert done.rows.column("n").to_pylist() == [int(event["n"]) for event in events]
        assert done.rows.column("s").to_pylist() == [event.get("s") for event in events]
        assert done.rows.column("l").to_pylist() == [event.get("l", []) for event in events]
    assert done.rows.column("m").to_pylist() == [list(event.get("m", {}).items()) for event in events]


@examples(200)
@given(st.lists(VALUES.filter(lambda value: value is not None), min_size=1, max_size=5))
def test_depth_is_counted_as_a_parser_would(values):
    def depth(value: object) -> int:
        if isinstance(value, list):
            return 1 + max(map(depth, value), default=0)
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        return 0

    texts = [json.dumps(value).encode() for value in values]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    deepest, goes_on = measure_depth(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets)
    assert deepest.tolist() == [depth(value) for value in values]
    assert not goes_on.any()
