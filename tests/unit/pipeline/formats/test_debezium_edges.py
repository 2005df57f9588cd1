"""Debezium at its edges: scales beyond a decimal's, marks of absent values, places in a log that repeat, connectors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from debezium_examples import FIELDS, MYSQL, POSTGRES, column, decode, describe, envelope, write
from oncehouse.pipeline.convert.rejection import Reason

DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE = "io.debezium.data.VariableScaleDecimal"
MARK = "__debezium_unavailable_value"
MARK_BYTES = list(MARK.encode())


def encode(number: int) -> str:
    size = max(1, (number.bit_length() + 8) // 8)
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def scaled(scale: Any) -> dict[str, Any]:
    return column("bytes", DECIMAL, parameters={"scale": scale})


# -- decimals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described", "type_", "value", "expected"),
    [
        (scaled("-2"), "Decimal(38, 0)", encode(5), "500"),
        (scaled("-2"), "Int32", encode(-5), "-500"),
        (scaled("-2"), "Nullable(Decimal(38, 2))", None, "None"),
        (scaled("-120"), "String", encode(5), "5" + "0" * 120),
        (scaled("100"), "Decimal(38, 2)", encode(0), "0.00"),
        (scaled("75"), "Decimal(76, 75)", encode(5), "0." + "0" * 74 + "5"),
        (scaled("100"), "Decimal(76, 75)", encode(5 * 10**25), "0." + "0" * 74 + "5"),
        (scaled("130"), "String", encode(5), "0." + "0" * 129 + "5"),
        (column("struct", VARIABLE), "String", {"scale": -120, "value": encode(5)}, "5" + "0" * 120),
        (
            column("struct", VARIABLE),
            "Decimal(76, 75)",
            {"scale": 100, "value": encode(5 * 10**25)},
            "0." + "0" * 74 + "5",
        ),
        (
            column("map", keys={"type": "string"}, values=scaled("2")),
            "Map(String, Decimal(9, 2))",
            {"a": encode(150)},
            "[('a', Decimal('1.50'))]",
        ),
    ],
)
def test_a_decimal_of_any_scale_keeps_its_value(described, type_, value, expected):
    decoded = decode({"v": type_}, [write(envelope("c", {"v": value}), describe(described))])
    assert not decoded.rejected, decoded.rejected
    found = decoded.rows.column(0)[0].as_py()
    assert (f"{found:f}" if hasattr(found, "as_tuple") else str(found)) == expected


@pytest.mark.parametrize(
    ("described", "value", "detail"),
    [
        (scaled("-40"), encode(5), "field v: outside of Decimal(38, 2)"),
        (scaled("100"), encode(5), "field v: outside of Decimal(38, 2)"),
        (scaled("two"), encode(5), "field v: the envelope's schema gives no scale from -1000 to 1000"),
        (scaled("1001"), encode(5), "field v: the envelope's schema gives no scale from -1000 to 1000"),
        (
            column("bytes", DECIMAL),
            encode(5),
            "field v: the envelope's schema gives no scale from -1000 to 1000",
        ),
        (
            column("struct", VARIABLE),
            {"scale": 1001, "value": encode(5)},
            "field v: not base64, more than 76 digits, or no scale from -1000 to 1000",
        ),
        (
            column("struct", VARIABLE),
            {"value": encode(5)},
            "field v: not base64, more than 76 digits, or no scale from -1000 to 1000",
        ),
    ],
)
def test_a_decimal_that_no_column_can_hold_is_refused_and_says_why(described, value, detail):
    fine = column("struct", VARIABLE) if isinstance(value, dict) else scaled("2")
    good = {"scale": 2, "value": encode(5)} if isinstance(value, dict) else encode(5)
    values = [
        write(envelope("c", {"v": good}), describe(fine)),
        write(envelope("c", {"v": value}), describe(described)),
        write(envelope("c", {"v": None}), describe(described)),
    ]
    decoded = decode({"v": "Nullable(Decimal(38, 2))"}, values)
    assert [str(found) for found in decoded.rows.column(0).to_pylist()] == ["0.05", "None"]
    assert decoded.rejected[0].detail.startswith(detail), decoded.rejected[0].detail


# -- values that the log does not have ----------------------------------------------------------------------


def floats(numbers: list[int]) -> list[float]:
    return [float(number) for number in numbers]


def single_bytes() -> list[str]:
    return [base64.b64encode(bytes([number])).decode() for number in MARK_BYTES]


HSTORE = column("map", keys={"type": "string"}, values={"type": "string", "optional": True})
UNAVAILABLE = [
    (HSTORE, "Map(String, Nullable(String))", {MARK: MARK}, {"a": MARK, MARK: "b"}),
    (
        column("string", "io.debezium.data.Json"),
        "String",
        json.dumps({MARK: MARK}, separators=(",", ":")),
        "{}",
    ),
    (
        column("array", items={"type": "double"}),
        "Array(Float64)",
        floats(MARK_BYTES),
        floats(MARK_BYTES[:27]),
    ),
    (column("array", items={"type": "float"}), "Array(Float32)", floats(MARK_BYTES), [95.0]),
    (column("array", items={"type": "int64"}), "Array(Nullable(Int64))", MARK_BYTES, [None] * 28),
    (column("array", items=scaled("2")), "Array(Decimal(9, 2))", single_bytes(), [encode(1)] * 28),
    (
        column("array", items=column("struct", VARIABLE)),
        "Array(Decimal(38, 0))",
        [{"scale": 0, "value": text} for text in single_bytes()],
        [{"scale": 0, "value": "BQ=="}] * 28,
    ),
    (None, "Array(Int128)", MARK_BYTES, [95] * 28),
    (None, "Map(String, String)", {MARK: MARK}, {"a": MARK}),
    (None, "Array(UUID)", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], ["00000000-0000-0000-0000-000000000007"]),
    (None, "Array(Int64)", MARK_BYTES, [1]),
    (None, "Array(UInt8)", MARK_BYTES, [1] * 28),
    (None, "Array(Decimal(9, 2))", single_bytes(), [encode(1)] * 28),
    (None, "Array(Float64)", floats(MARK_BYTES), [1.5] * 28),
    (None, "Array(Date)", MARK_BYTES, [1]),
    (None, "Array(DateTime64(6))", MARK_BYTES, [1]),
    (None, "Array(DateTime)", MARK_BYTES, [1]),
]


@pytest.mark.parametrize(("described", "type_", "mark", "good"), UNAVAILABLE)
def test_the_mark_of_an_absent_value_is_found_in_maps_and_arrays(described, type_, mark, good):
    schema = None if described is None else describe(described)
    values = [write(envelope("u", {"v": value}), schema) for value in (good, mark, good)]
    decoded = decode({"v": type_}, values)
    assert decoded.taken.tolist() == [0, 2], (decoded.rejected, decoded.rows.to_pylist())
    assert decoded.rejected[0].reason is Reason.MISSING_FIELD
    assert "field v: not changed, and therefore not in the log" in decoded.rejected[0].detail


@pytest.mark.parametrize("members", [["value"], ["scale", "value"], ["scale"]])
def test_arrays_of_other_structs_have_no_mark(members):
    item = column("struct", fields=[column("string") | {"field": name} for name in members])
    value = [dict.fromkeys(members, "a")] * 28
    values = [write(envelope("u", {"v": value}), describe(column("array", items=item)))]
    declared = ", ".join(f"{name} String" for name in members)
    assert decode({"v": f"Array(Tuple({declared}))"}, values).rows.num_rows == 1


@pytest.mark.parametrize(("described", "type_", "mark", "good"), UNAVAILABLE)
def test_a_deleted_row_takes_the_default_for_an_absent_value(described, type_, mark, good):
    schema = None if described is None else describe(described)
    values = [write(envelope("d", None, {"v": value}), schema) for value in (mark, good)]
    decoded = decode({"v": type_}, values)
    assert decoded.taken.tolist() == [0, 1], decoded.rejected
    found, kept = decoded.rows.column("v").to_pylist()
    assert found == ("" if type_ == "String" else [])
    assert kept


# -- places that repeat ---------------------------------------------------------------------------------------


def test_changes_of_a_compressed_transaction_are_events_of_their_own():
    """All events of a compressed transaction stand at its position, and each numbers its rows from 0."""
    old, new, newest = ({"id": 1, "name": name} for name in ("a", "b", "c"))
    source = MYSQL | {"gtid": "a-b:7", "server_id": 3}
    changes = [
        envelope("u", new, old, source),
        envelope("u", newest, new, source),
        envelope("d", None, newest, source),
        envelope("c", old, None, source),
    ]
    delivered_twice = [write(change | {"ts_ms": time}) for time in (9, 11) for change in changes]
    with_schema = [write(change, describe(column("string"))) for change in changes]
    identities = [
        (row["_table"], row["_key"], row["_position"])
        for values in (delivered_twice, with_schema)
        for row in decode(FIELDS, values).rows.to_pylist()
    ]
    assert len(set(identities[:4])) == 4, "a change would be lost as the duplicate of another"
    assert identities[:4] == identities[4:8], "what is delivered twice counts once"
    assert identities[0][2].startswith("binlog.000003:154:0:")


def test_a_snapshot_of_mysql_is_identified_by_its_keys_alone():
    rows = [
        write(envelope("r", {"id": 1, "name": name}, None, MYSQL | {"snapshot": "true"}))
        for name in ("a", "b")
    ]
    assert decode(FIELDS, rows).rows.column("_position").to_pylist() == ["binlog.000003:154:0:snapshot"] * 2


def test_rows_without_a_key_are_told_apart_where_a_column_is_named_source():
    """The row's own member must not be taken for the envelope's block of that name."""
    place = column("struct", fields=[column("int64") | {"field": "x"}]) | {"field": "source"}
    last = column("int64") | {"field": "id"}
    rows = [
        write(envelope("c", {"name": "a", "source": {"x": 1}, "id": number}), describe(place, last))
        for number in (1, 2)
    ]
    keys = decode({"id": "Int64", "_key": "String"}, rows, [None, None]).rows.column("_key").to_pylist()
    beginning = '{"before":null,"after":{"name":"a","source":{"x":1},"id":'
    assert keys == [f"{beginning}1}}", f"{beginning}2}}"]


def test_changes_of_oracle_at_one_system_change_number_are_events_of_their_own():
    source = {
        "connector": "oracle",
        "db": "ORCL",
        "schema": "APP",
        "table": "T",
        "scn": "7",
        "commit_scn": "9",
    }
    places = [source | {"lcr_position": "00a1"}, source | {"lcr_position": "00a2"}, source | {"scn_idx": 3}]
    rows = decode(FIELDS, [write(envelope("c", {"id": 1, "name": ""}, None, place)) for place in places]).rows
    assert rows.column("_position").to_pylist() == ["7:9:00a1", "7:9:00a2", "7:9:3"]


# -- connectors -----------------------------------------------------------------------------------------------


def refused(connector: str) -> str:
    return (
        f"source.connector: changes of the connector '{connector}' are not read; those of postgresql, mysql, mariadb, "
        "sqlserver, oracle, db2 and informix are"
    )


@pytest.mark.parametrize(
    ("connector", "change"),
    [
        (
            "mongodb",
            envelope("c", '{"_id":1}', None, {"connector": "mongodb", "db": "d", "collection": "c", "ord": 1})
            | {"updateDescription": None},
        ),
        (
            "mongodb",
            {
                "op": "d",
                "before": None,
                "source": {"connector": "mongodb", "db": "d", "collection": "c", "ord": 1},
            },
        ),
        (
            "vitess",
            envelope(
                "c",
                {"id": 1, "name": ""},
                None,
                {"connector": "vitess", "keyspace": "k", "table": "t", "vgtid": "[]", "shard": "0"},
            ),
        ),
        (
            "cassandra",
            {
                "op": "i",
                "after": {"id": {"value": 1, "set": True}},
                "source": {"connector": "cassandra", "file": "f", "pos": 1},
            },
        ),
        (
            "yugabytedb",
            envelope(
                "c",
                {"id": {"value": 1, "set": True}},
                None,
                POSTGRES | {"connector": "yugabytedb", "lsn": "1:3::0"},
            ),
        ),
        ("spanner", envelope("c", {"id": 1, "name": ""}, None, {"connector": "spanner", "table": "t"})),
        ("jdbc'\n", envelope("c", {"id": 1, "name": ""}, None, POSTGRES | {"connector": "jdbc'\n"})),
    ],
)
def test_connectors_that_are_not_read_are_refused_by_name(connector, change):
    good = write(envelope("c", {"id": 1, "name": "a"}))
    decoded = decode(FIELDS, [good, write(change), b"nonsense", good])
    assert decoded.taken.tolist() == [0, 3]
    assert [one.reason for one in decoded.rejected] == [Reason.UNSUPPORTED, Reason.NOT_JSON]
    name = connector if connector.isalnum() else "jdbc"
    assert decoded.rejected[0].detail == refused(name)


@pytest.mark.parametrize(
    "connector", ["postgresql", "mysql", "mariadb", "sqlserver", "oracle", "db2", "informix", None]
)
def test_changes_of_relational_connectors_are_read(connector):
    row = {"id": 1, "name": "a"}
    decoded = decode(FIELDS, [write(envelope("c", row, None, POSTGRES | {"connector": connector}))])
    assert decoded.rows.num_rows == 1
