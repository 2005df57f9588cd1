"""Protobuf from a real producer to rows in ClickHouse: exact values at the edges, and every version once."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import pytest
from confluent_kafka import Producer

from live_pipeline import LivePipeline
from oncehouse.ledger.catalog.epochs import list_dead_letter_files
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.ledger.models import DeadLetterKind, EpochKind, RequestKind
from oncehouse.pipeline.formats.protobuf.schema_sources import make_schema
from oncehouse.pipeline.requests.dead_letter_replay import read_dead_letters
from protobuf_examples import FOLDER, everything, message_class

UTC = dt.UTC


@pytest.fixture
def send(kafka):
    """`send(pipeline, [(partition, version, value)])`: records with the version in a header, or without one."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})

    def run(live_pipeline: LivePipeline, records) -> None:
        for partition, version, value in records:
            headers = [] if version is None else [("schema-version", version.encode())]
            producer.produce(live_pipeline.topic, value, partition=partition, headers=headers)
        assert producer.flush(30) == 0
        live_pipeline.produced += len(records)

    return run


def edges():
    """One message at each end of every type, told apart by `i32`."""
    make = everything()
    low = make(
        i32=-(2**31), i64=-(2**63), s32=-(2**31), s64=-(2**63), sf32=-(2**31), sf64=-(2**63), fl=-math.inf,
        db=-math.inf, y=b"\xff\x00", c=-1, ri=[-(2**31)], du={"seconds": -315_576_000_000, "nanos": -999_999_999},
        msi={"": -(2**31)}, oa=0, w64={}, rs=["", "\0"],
    )  # fmt: skip
    low.ts.FromJsonString("1900-01-01T00:00:00Z")
    low.rts.add(seconds=0)
    high = make(
        i32=2**31 - 1, i64=2**63 - 1, u32=2**32 - 1, u64=2**64 - 1, s32=2**31 - 1, s64=2**63 - 1, f32=2**32 - 1,
        f64=2**64 - 1, sf32=2**31 - 1, sf64=2**63 - 1, fl=math.inf, db=math.nan, b=True, s="\U0010ffff ß \u202e", c=5,
        inner={"id": 2**63 - 1, "name": "é"}, oi=0, os="", oc=0, rm=[{"id": 1}, {}], rc=[0, 1, 77], ob="x",
    )  # fmt: skip
    high.ts.FromJsonString("2299-12-31T23:59:59.999999Z")
    high.mim[-1].name = "minus one"
    high.st.update({"a": [None, True]})
    high.mts["x"].FromJsonString("2262-04-12T00:00:00Z")
    return [low, make(i32=0), high]


def test_values_at_the_edges_of_every_type_arrive_exactly(make_pipeline, send):
    live_pipeline = make_pipeline(tables=False, identity={"fields": ["i32"]})
    live_pipeline.document["source"] = {
        "kafka": live_pipeline.document["source"]["kafka"],
        "format": "protobuf",
        "protobuf": {
            "message": "everything.Everything",
            "schemas": {"1": {"files": [str(FOLDER / "everything.proto")]}},
        },
    }
    live_pipeline.create_tables()
    bad_utf8 = b"\x08\x05\x72\x02\xff\xfe"
    send(
        live_pipeline,
        [(0, None, value) for value in (*(m.SerializeToString() for m in edges()), b"\x08\xff", bad_utf8)],
    )
    live_pipeline.run()
    low, zero, high = ask(
        live_pipeline, "*, hex(y) AS y, toString(ts) AS ts, toString(mts) AS mts, toString(rts) AS rts"
    )
    assert low | LOW == low
    assert zero | ZERO == zero
    assert math.isnan(high.pop("db"))
    assert high | HIGH == high
    files = [found.file for found in list_dead_letter_files(live_pipeline.catalog)]
    letters = read_dead_letters(live_pipeline.store, files).to_pylist()
    assert [(row["offset"], row["reason"], row["value"]) for row in letters] == [
        (3, "malformed", b"\x08\xff"),
        (4, "bad_utf8", bad_utf8),
    ]
    live_pipeline.assert_settled()


def ask(live_pipeline, what, order="i32"):
    found = live_pipeline.client.query(f"SELECT {what} FROM {live_pipeline.table} ORDER BY {order}")
    return [dict(zip(found.column_names, row, strict=True)) for row in found.result_rows]


LOW = {
    "i32": -(2**31), "i64": -(2**63), "u32": 0, "u64": 0, "s32": -(2**31), "s64": -(2**63), "sf32": -(2**31),
    "sf64": -(2**63), "fl": -math.inf, "db": -math.inf, "b": False, "s": "", "y": "FF00", "c": "-1",
    "inner": {"id": 0, "name": ""}, "oi": None, "os": None, "oc": None, "ri": [-(2**31)], "rs": ["", "\0"],
    "msi": {"": -(2**31)}, "one": "oa", "oa": 0, "ob": None, "ts": "1900-01-01 00:00:00.000000",
    "du": decimal.Decimal("-315576000000.999999999"), "w64": 0, "rts": "['1970-01-01 00:00:00.000000']",
}  # fmt: skip
ZERO = {
    "i32": 0, "i64": 0, "u64": 0, "fl": 0.0, "db": 0.0, "b": False, "s": "", "y": "", "c": "NONE", "oi": None,
    "inner": {"id": 0, "name": ""}, "ri": [], "rm": [], "msi": {}, "mim": {}, "one": None, "ts": None, "du": None,
    "w64": None, "st": None, "rts": "[]", "mts": "{}",
}  # fmt: skip
HIGH = {
    "i32": 2**31 - 1, "i64": 2**63 - 1, "u32": 2**32 - 1, "u64": 2**64 - 1, "f32": 2**32 - 1, "f64": 2**64 - 1,
    "fl": math.inf, "b": True, "s": "\U0010ffff ß \u202e", "c": "BLUE", "inner": {"id": 2**63 - 1, "name": "é"},
    "oi": 0, "os": "", "oc": "NONE", "rm": [{"id": 1, "name": ""}, {"id": 0, "name": ""}], "rc": ["NONE", "RED", "77"],
    "mim": {-1: {"id": 0, "name": "minus one"}}, "one": "ob", "oa": None, "ob": "x", "st": '{"a":[null,true]}',
    "ts": "2299-12-31 23:59:59.999999", "mts": "{'x':'2262-04-12 00:00:00.000000'}",
}  # fmt: skip


# -- versions ---------------------------------------------------------------------------------------------

ORDER_FIELDS = {
    "id": "Int64",
    "product": "Nullable(String)",
    "amount": "UInt32",
    "status": "LowCardinality(String)",
    "buyer.name": "String",
    "note": "Nullable(String)",
}


def encode(version, number):
    match version:
        case "1":
            values = {"id": number, "product": f"p{number}"}
        case "2":
            values = {"id": number, "product": f"p{number}", "amount": number, "status": 1}
        case "3":
            values = {"id": number, "amount": number, "status": 2, "buyer": {"name": f"b{number}"}}
        case _:
            return message_class("order_v5.proto", "shop.Order")(
                id=number, amount=number, status=3, note=f"n{number}"
            ).SerializeToString()
    return message_class(f"order_v{version}.proto", "shop.Order")(**values).SerializeToString()


def expected(version, number):
    match version:
        case "1":
            return (number, f"p{number}", 0, "UNKNOWN", "", None)
        case "2":
            return (number, f"p{number}", number, "PAID", "", None)
        case "3":
            return (number, None, number, "SENT", f"b{number}", None)
        case _:
            return (number, None, number, "LOST", "", f"n{number}")


@pytest.mark.long
@pytest.mark.scenario("schema version nobody knows")
def test_mixed_versions_arrive_once_though_one_is_learnt_later_and_the_pipeline_is_killed(
    make_pipeline, send
):
    live_pipeline = make_pipeline(tables=False, partitions=2, identity={"fields": ["id"]})
    live_pipeline.document["source"] |= {
        "format": "protobuf",
        "fields": ORDER_FIELDS,
        "protobuf": {
            "message": "shop.Order",
            "version": "header",
            "schemas": {str(n): {"files": [str(FOLDER / f"order_v{n}.proto")]} for n in (1, 2, 3)},
        },
    }
    # `note` comes with version 4, which nobody knows yet.
    del live_pipeline.document["source"]["fields"]["note"]
    live_pipeline.create_tables()
    live_pipeline.create_view()
    events = [(str(number % 4 + 1), number) for number in range(400)]
    send(live_pipeline, [(number % 2, version, encode(version, number)) for version, number in events])
    live_pipeline.run()
    assert live_pipeline.counts().waiting == 100
    assert len(ask(live_pipeline, "id", "id")) == 300

    live_pipeline.document["source"]["fields"] = ORDER_FIELDS | {"note": "Nullable(String)"}
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} ADD COLUMN note Nullable(String)")
    fourth = make_schema("4", files=[str(FOLDER / "order_v5.proto")], message="shop.Order")
    add_schemas(live_pipeline.catalog, [fourth])
    # Again some that have arrived, some that wait, and new ones of all versions.
    later = [(str(number % 4 + 1), number) for number in range(380, 500)]
    send(live_pipeline, [(number % 2, version, encode(version, number)) for version, number in later])
    live_pipeline.crash("before registering", "--once")
    live_pipeline.run()
    wanted = [expected(str(number % 4 + 1), number) for number in range(500)]
    assert orders(live_pipeline, live_pipeline.table) == wanted
    assert not list_dead_letter_files(live_pipeline.catalog, kind=DeadLetterKind.WAITING)
    again = live_pipeline.counts(EpochKind.WAITING)
    assert again.read == 100
    assert again.new + again.duplicate == 100

    # Out of the ledger alone, each record once more by the version that it was written with.
    other = f"{live_pipeline.database}.others"
    live_pipeline.document["tables"].append({"name": other})
    live_pipeline.create_tables(other)
    live_pipeline.request(RequestKind.REFILL_TABLE, table=other)
    assert orders(live_pipeline, other) == wanted
    live_pipeline.assert_settled()


def orders(live_pipeline: LivePipeline, table: str):
    what = "id, product, amount, status, `buyer.name`, note"
    return [
        tuple(row)
        for row in live_pipeline.client.query(f"SELECT {what} FROM {table} ORDER BY id").result_rows
    ]
