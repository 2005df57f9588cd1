"""What an outbox takes and what it refuses, before anything is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.outbox.encoding import OutboxMessage, encode_message
from oncehouse.messaging.outbox.ids import make_id, time_of
from oncehouse.messaging.outbox.row_builder import make_rows
from oncehouse.messaging.outbox.tables import BUCKETS, bucket_of

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=8,
)


def encode(**message):
    return encode_message(OutboxMessage(**({"topic": "orders"} | message)))


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON) | st.lists(JSON))
def test_what_json_can_say_comes_back_from_the_bytes_that_are_sent(value):
    encoded = encode(value=value).value
    assert json.loads(encoded) == value
    assert encoded == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@given(st.binary() | st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_and_text_are_sent_as_they_are(value):
    raw = value.encode() if isinstance(value, str) else value
    encoded = encode(key=value, value=value, headers={"trace": value})
    assert (encoded.key, encoded.value, encoded.headers) == (raw, raw, (("trace", raw),))


def test_no_key_and_no_value_are_said_by_none():
    encoded = encode(key=None, value=None)
    assert (encoded.key, encoded.value, encoded.headers) == (None, None, ())


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"topic": "no topic"}, "is not a topic name"),
        ({"topic": 7}, "cannot take this message"),
        ({"value": 7}, "the value is of type int; give it as bytes, as str, or as dict or list"),
        ({"value": {"at": datetime(2026, 11, 15, tzinfo=UTC)}}, "cannot be written as JSON .*datetime"),
        ({"value": {"share": float("nan")}}, "cannot be written as JSON"),
        ({"value": "\ud800"}, "the value holds half of a surrogate pair"),
        ({"value": ["\ud800"]}, "the value holds half of a surrogate pair"),
        ({"key": 17}, "the key is of type int; give it as str or bytes"),
        ({"headers": {"n": 1}}, "the header 'n' is of type int"),
        ({"headers": {"oncehouse-id": "x"}}, "kept for oncehouse itself"),
        ({"headers": {"Oncehouse-Origin": "x"}}, "kept for oncehouse itself"),
        ({"headers": {"": "x"}}, "a header is named ''"),
        ({"headers": {"a\0b": "x"}}, "control character"),
        ({"headers": {7: "x"}}, "a header is named 7"),
        ({"headers": [("a", "b")]}, "the headers are of type list"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_what_to_give_instead(message, why):
    with pytest.raises(ConfigurationError, match=why):
        encode(**message)


def test_a_value_within_itself_is_refused():
    value: list[object] = []
    value.append(value)
    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        encode(value=value)


def test_a_message_is_refused_from_the_byte_on_that_no_broker_would_take():
    fixed = encode(key="k", value=b"", headers={"a": "b"}).size_bytes
    fits = OutboxMessage(topic="orders", key="k", value=b"x" * (1000 - fixed), headers={"a": "b"})
    larger = OutboxMessage(topic="orders", key="k", value=b"x" * (1001 - fixed), headers={"a": "b"})
    assert encode_message(fits, max_bytes=1000).size_bytes == 1000
    with pytest.raises(ConfigurationError, match=r"it has 1,001 bytes .* the limit is 1,000"):
        encode_message(larger, max_bytes=1000)


@given(st.integers(min_value=0, max_value=2**48 - 1))
def test_an_id_is_a_uuid_that_tells_when_it_was_made(milliseconds):
    made = make_id(milliseconds)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert time_of(made) == milliseconds / 1000


def test_ids_of_other_kinds_tell_no_time():
    assert time_of(UUID("4d47e190-0402-4048-bc2c-89dd54343cdc")) is None


def test_ids_differ_although_made_at_one_moment():
    assert len({make_id(1) for _ in range(1000)}) == 1000


def test_rows_of_a_key_share_the_bucket_that_the_relay_looks_in():
    messages = [OutboxMessage(topic="orders", key=key, value=b"") for key in ("a", b"a", "b", None, None)]
    rows = make_rows(messages, max_bytes=1000)
    assert rows[0].bucket == rows[1].bucket == bucket_of(b"a", rows[0].id)
    assert rows[2].bucket == bucket_of(b"b", rows[2].id)
    assert all(row.bucket == bucket_of(None, row.id) for row in rows[3:])
    assert all(0 <= row.bucket < BUCKETS for row in rows)


def test_one_bad_message_leaves_none_to_write():
    good, bad = OutboxMessage(topic="orders", value=b""), OutboxMessage(topic="orders", value=7)
    with pytest.raises(ConfigurationError):
        make_rows([good, bad], max_bytes=1000)
