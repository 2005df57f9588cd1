"""Which fields a pipeline has, which are new to it, and what becomes of them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import LearnedField, Schema
from oncehouse.pipeline.formats.json.decoder import JsonDecoder
from oncehouse.pipeline.formats.json.new_fields import MOST_NEW_FIELDS, cut_by_keys, merge_fields
from oncehouse.pipeline.schema import evolution
from oncehouse.pipeline.schema.evolution import learn_new_fields, new_fields, with_learned

FIELDS = {"id": "Int64", "user": "Tuple(name String)"}


def make_pipeline(folder="none", *, policy="add", fields=None, tables=None, **source) -> Pipeline:
    return Pipeline(
        pipeline="orders",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["orders"]},
            "fields": fields or FIELDS,
            "new_fields": policy,
            **source,
        },
        identity={"fields": ["id"]},
        tables=tables or [{"name": "orders"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": f"sqlite:///{folder}/c.db", "files": "files"},
    )


def decode(*messages, watch=True, fields=None):
    types = {name: parse_type(text) for name, text in (fields or {"id": "Int64"}).items()}
    decoder = JsonDecoder(fields=types, max_message_bytes=1 << 20, max_depth=64, watch=watch)
    return decoder.decode(pa.array([encode(message) for message in messages], pa.binary()))


def encode(message) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode()


# -- what JSON brings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, None, -3], "Nullable(Int64)"),
        ([1, 2.5], "Nullable(Float64)"),
        ([True, None], "Nullable(Bool)"),
        (["a", ""], "Nullable(String)"),
        (["2024-01-01", "2024-01-02 03:04:05"], "Nullable(String)"),
        ([[1, 2], []], "Array(Nullable(Int64))"),
        ([["x"]], "Array(Nullable(String))"),
        ([{"a": 1}], None),
        ([[[1]]], None),
        ([1, "x"], None),
        (["x", {"a": 1}], None),
    ],
)
def test_a_key_that_nobody_declared_is_told_with_a_cautious_type(values, type_):
    decoded = decode(*({"id": number, "extra": value} for number, value in enumerate(values)))
    assert decoded.new_fields == {"extra": type_}
    assert decoded.rows.column("id").to_pylist() == list(range(len(values))), "it costs no message"
    assert not decoded.rejected


def test_a_key_that_is_always_null_says_nothing_yet():
    assert decode({"id": 1, "extra": None}).new_fields == {}


def test_one_in_many_is_noticed_and_keys_inside_of_declared_tuples_too():
    messages = [{"id": number, "user": {"name": "x"}} for number in range(3000)]
    messages[1717] = {"id": 1717, "user": {"name": "x", "nick": "y", "home": {"a": 1}}, "coupon": "c"}
    decoded = decode(*messages, fields=FIELDS)
    assert decoded.new_fields == {"user.nick": None, "user.home": None, "coupon": "Nullable(String)"}
    assert decoded.rows.num_rows == 3000
    assert decoded.rows.column("user")[1717].as_py() == {"name": "x"}


def test_nobody_looks_who_was_not_asked_to():
    assert decode({"id": 1, "extra": 1}, watch=False).new_fields == {}


KEYS = st.sampled_from(["id", "a", "b", "user"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=4) | st.binary(max_size=6), max_size=8))
def test_looking_for_new_keys_changes_no_row_and_no_verdict(messages):
    plain, watched = (
        decode(*messages, watch=watch, fields={"id": "Nullable(Int64)", "user": "Nullable(String)"})
        for watch in (False, True)
    )
    assert watched.rows.equals(plain.rows)
    assert watched.rejected == plain.rejected
    assert watched.taken.tolist() == plain.taken.tolist()
    for place in plain.taken.tolist():
        for key, value in json.loads(encode(messages[place])).items():
            assert value is None or key in {"id", "user"} or key in watched.new_fields


def test_what_blocks_say_is_put_together():
    found: dict[str, str | None] = {"a": "Nullable(Int64)", "b": "Nullable(String)"}
    merge_fields(found, {"a": "Nullable(Float64)", "b": "Nullable(Int64)", "c": None})
    assert found == {"a": "Nullable(Float64)", "b": None, "c": None}


# -- which fields there are -------------------------------------------------------------------------------


def test_learnt_fields_come_after_those_of_the_file_and_the_file_comes_first_when_it_speaks():
    pipeline = make_pipeline()
    learned = [
        LearnedField(field="coupon", type="Nullable(Int64)"),
        LearnedField(field="debug", type=None),
        LearnedField(field="id", type="Int128", instead_of="Int64"),
        LearnedField(field="coupon", type="Nullable(String)"),
    ]
    now = with_learned(pipeline, learned)
    assert now.source.fields == {"id": "Int128", "user": FIELDS["user"], "coupon": "Nullable(String)"}
    spoken = make_pipeline(fields={"id": "UInt8", "coupon": "Nullable(UUID)"})
    assert with_learned(spoken, learned).source.fields == {"id": "UInt8", "coupon": "Nullable(UUID)"}
    assert with_learned(pipeline, []) is pipeline


HOME = {"type": "record", "name": "Home", "fields": [{"name": "city", "type": "string"}]}
USER = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": USER},
        {"name": "coupon", "type": "string"},
        {"name": "lines", "type": {"type": "array", "items": "int"}},
        {"name": "home", "type": HOME},
    ],
}


def test_new_is_what_neither_file_nor_ledger_knows():
    pipeline = make_pipeline(unused_fields=["trace"])
    noticed = {
        "id": "Nullable(Int64)",
        "trace": "Nullable(String)",
        "coupon": "Nullable(String)",
        "old": None,
    }
    known = [LearnedField(field="old", type=None)]
    assert new_fields(pipeline, known, [], noticed) == {"coupon": "Nullable(String)"}


def test_fields_of_a_schema_version_are_new_as_nullable_and_an_inner_field_speaks_for_its_record():
    pipeline = make_pipeline(
        fields={"id": "Int64", "user.name": "String"},
        format="avro",
        avro={"version": "header", "schemas": {"1": "one.avsc"}},
    )
    schema = Schema(schema="1", format="avro", definition=json.dumps(AVRO))
    assert new_fields(pipeline, [], [schema], {}) == {
        "coupon": "Nullable(String)",
        "lines": "Array(Int32)",
        "home": None,
    }


# -- what becomes of them ---------------------------------------------------------------------------------


@pytest.fixture
def columns(monkeypatch) -> list[str]:
    """Names of columns that were added; ClickHouse is not asked."""
    added: list[str] = []
    monkeypatch.setattr(evolution, "add_columns", lambda _, fields: added.extend(fields))
    return added


@pytest.fixture
def token(catalog) -> int:
    from ledger_examples import take_lease

    return take_lease(catalog)


def learnt(catalog):
    return {found.field: found.type for found in evolution.list_fields(catalog)}


def test_a_new_field_gets_its_column_and_stays_known(catalog, token, columns):
    assert learn_new_fields(make_pipeline(), catalog, token, {"coupon": "Nullable(String)", "nest": None})
    assert columns == ["coupon"]
    assert learnt(catalog) == {"coupon": "Nullable(String)", "nest": None}
    assert not learn_new_fields(
        make_pipeline(), catalog, token, {"coupon": "Nullable(Int64)", "nest": "Int8"}
    )
    assert columns == ["coupon"]


@pytest.mark.parametrize("name", ["_batch_id", "_unique_id", "_event", "a.b", "x\x00y", " ", "n" * 201])
def test_names_that_no_column_can_have_are_left_out(catalog, token, columns, name):
    assert not learn_new_fields(make_pipeline(), catalog, token, {name: "Nullable(String)"})
    assert columns == []
    assert learnt(catalog).get(name) is None


def test_a_producer_cannot_fill_a_table_with_columns(catalog, token, columns):
    flood = {f"key{number}": "Nullable(String)" for number in range(501)}
    with pytest.raises(ConfigurationError, match="more than 500 fields"):
        learn_new_fields(make_pipeline(), catalog, token, flood)
    assert columns == []
    assert learnt(catalog) == {}


def test_nothing_is_written_down_when_the_column_cannot_be_made(catalog, token, monkeypatch):
    def refuse(*_: object) -> None:
        raise ConfigurationError("no right to alter")

    monkeypatch.setattr(evolution, "add_columns", refuse)
    with pytest.raises(ConfigurationError, match="no right"):
        learn_new_fields(make_pipeline(), catalog, token, {"coupon": "Nullable(String)"})
    assert learnt(catalog) == {}


def test_stop_says_the_field_its_type_and_what_to_do(catalog, token, columns):
    with pytest.raises(ConfigurationError) as caught:
        learn_new_fields(
            make_pipeline(policy="stop"), catalog, token, {"coupon": "Nullable(String)", "nest": None}
        )
    told = str(caught.value)
    assert "coupon (Nullable(String)), nest (several types, or nested)" in told
    assert "`oncehouse schema apply`" in told
    assert "source.unused_fields" in told
    assert (columns, learnt(catalog)) == ([], {})


def test_ignore_does_nothing(catalog, token, columns):
    assert not learn_new_fields(
        make_pipeline(policy="ignore"), catalog, token, {"coupon": "Nullable(String)"}
    )
    assert (columns, learnt(catalog)) == ([], {})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": "csv"}, "source.new_fields: csv does not report new fields"),
        ({"tables": [{"name": "t", "columns": {"id": "id"}}]}, "no table takes new fields"),
        ({"policy": "grow"}, "source.new_fields: must be 'ignore', 'add' or 'stop'"),
    ],
)
def test_a_policy_that_cannot_hold_is_refused(changes, told):
    with pytest.raises(ConfigurationError, match=told):
        make_pipeline(**changes)


def test_keys_without_end_fill_no_memory_and_cost_no_message():
    odd = [json.dumps({"id": number} | {f"k{number}-{key}": 1 for key in range(2000)}) for number in range(2)]
    odd += [json.dumps({"id": number, f"n{number}": 1}) for number in range(2, 20_000)]
    decoder = JsonDecoder(
        fields={"id": parse_type("UInt64")}, max_message_bytes=1 << 20, max_depth=64, watch=True
    )
    before = pa.default_memory_pool().max_memory()
    found = decoder.decode(pa.array([text.encode() for text in odd], pa.binary()))
    assert found.rows.column("id").to_pylist() == list(range(20_000))
    assert len(found.new_fields) > MOST_NEW_FIELDS
    assert pa.default_memory_pool().max_memory() - before < 400 << 20


def test_runs_of_messages_are_bounded_by_their_keys_and_lose_none():
    plain, wide = b'{"a": 1}', b"{" + b'"k":1,' * 30_000 + b"}"
    texts = pa.array([*[plain] * 9000, wide, *[plain] * 3000], pa.binary())
    runs = list(cut_by_keys(texts))
    assert pa.concat_arrays(runs).equals(texts)
    assert max(len(run) for run in runs) <= 4000
    assert max(len(run) for run in runs if wide in run.to_pylist()) < 1000
