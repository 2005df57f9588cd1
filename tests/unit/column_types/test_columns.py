"""Types: what is read, how it is written back, and that ClickHouse itself takes the Arrow type without loss."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
import subprocess
import sys
import uuid

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import Array, Nullable, String, arrow_type, clickhouse_name
from oncehouse.errors import ConfigurationError

SCALARS = [
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)),
    *("Float32", "Float64", "Bool", "String", "Date", "Date32", "DateTime", "UUID"),
    *("FixedString(7)", "Decimal(9, 2)", "Decimal(76, 76)", "DateTime('Europe/Berlin')"),
    *("DateTime64(0)", "DateTime64(9, 'UTC')", "Enum8('it\\'s' = -2, 'a' = 1)", "Enum16('x' = 1000)"),
]
TYPES = st.recursive(
    st.sampled_from(SCALARS) | st.sampled_from(SCALARS).map("Nullable({})".format),
    lambda inner: st.one_of(
        inner.map("Array({})".format),
        inner.map("Map(String, {})".format),
        inner.map("Map(LowCardinality(String), {})".format),
        st.tuples(inner, inner).map(lambda two: "Tuple(a {}, `b c\\`d` {})".format(*two)),
    ),
    max_leaves=4,
)


@given(TYPES)
def test_the_canonical_name_reads_back_as_the_same_type(text):
    parsed = parse_type(text)
    assert clickhouse_name(parsed) == text
    assert parse_type(clickhouse_name(parsed)) == parsed
    assert isinstance(arrow_type(parsed), pa.DataType)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" Array ( Nullable(String) ) ", "Array(Nullable(String))"),
        ("Decimal(10)", "Decimal(10, 0)"),
        ("Decimal64(4)", "Decimal(18, 4)"),
        ("Nested(a Int8, b String)", "Array(Tuple(a Int8, b String))"),
        ("Enum8('a', 'b', 'z' = 9, 'y')", "Enum8('a' = 1, 'b' = 2, 'z' = 9, 'y' = 10)"),
        ("Tuple(`plain` Int8)", "Tuple(plain Int8)"),
    ],
)
def test_other_spellings_become_canonical(text, canonical):
    assert clickhouse_name(parse_type(text)) == canonical


def test_the_tree_is_values_that_compare():
    assert parse_type("Array(Nullable(String))") == Array(item=Nullable(inner=String()))


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("Strin", "nearest is String"),
        ("int64", "nearest is Int64"),
        ("varchar", "nearest is String"),
        ("timestamp", "nearest is DateTime64"),
        ("array(String)", "nearest is Array"),
        ("Array(Strng)", "at character 7"),
        ("", "expected a type"),
        ("Nullable(", "at character 10"),
        ("Array(String", "not closed"),
        ("Decimal(6", "put quotes around a type with a comma"),
        ("Array", "needs arguments"),
        ("String(5)", "takes no arguments"),
        ("Int64 x", "nothing may follow"),
        ("Decimal(77, 2)", "1 to 76"),
        ("Decimal(5, 6)", "0 to 5"),
        ("FixedString(0)", "length of FixedString"),
        ("FixedString(" + "9" * 5000 + ")", "length of FixedString"),
        ("Tuple(null Int8)", "keeps the name 'null'"),
        ("Int8\x1c", "nothing may follow"),
        ("DateTime('right/UTC')", "no time zone"),
        ("Enum8('\\x41')", "write the character"),
        ("DateTime64", "needs arguments"),
        ("DateTime64(10)", "0 to 9"),
        ("DateTime64(3, UTC)", "single quotes"),
        ("DateTime64(3, 'Mars/Olympus')", "no time zone"),
        ("DateTime('../../etc/passwd')", "no time zone"),
        ("Nullable(Array(String))", "scalar"),
        ("Nullable(LowCardinality(String))", r"LowCardinality\(Nullable"),
        ("LowCardinality(Array(String))", "without it"),
        ("Map(Float64, String)", "keys of a map are texts, integers"),
        ("Map(Nullable(String), String)", "keys of a map are texts, integers"),
        ("Map(String)", "key type and a value type"),
        ("Tuple(Int8, String)", "need names"),
        ("Tuple(a Int8, a Int8)", "stands twice"),
        ("Tuple(`` Int8)", "empty"),
        ("Enum8(a = 1)", "quoted names"),
        ("Enum8('a' = 1, 'a' = 2)", "stand once"),
        ("Enum8('a' = 200)", "-128 to 127"),
        ("Enum8('a", "not closed"),
        ("Array(" * 40 + "String" + ")" * 40, "nest at most"),
    ],
)
def test_a_wrong_type_is_refused_with_its_place_and_advice(text, advice):
    with pytest.raises(ConfigurationError, match=advice) as caught:
        parse_type(text)
    assert repr(text) in str(caught.value)
    assert "at character" in str(caught.value)


@settings(max_examples=300)
@given(st.text("ArayNulbeStringMp(), '`\\=0123\n", max_size=40))
def test_any_text_is_a_type_or_a_refusal(text):
    with contextlib.suppress(ConfigurationError):
        assert parse_type(clickhouse_name(parse_type(text))) == parse_type(text)


UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
MOMENT = dt.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
SAMPLES = [
    *((f"Int{bits}", [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], None) for bits in (8, 16, 32, 64)),
    *((f"UInt{bits}", [0, 2**bits - 1], None) for bits in (8, 16, 32, 64)),
    *(
        (f"{sign}Int{bits}", [n.to_bytes(bits // 8, "little", signed=not sign) for n in numbers], [*map(str, numbers)])
        for sign, bits, numbers in (
            ("", 128, [-(2**127), 2**127 - 1]),
            ("U", 128, [0, 2**128 - 1]),
            ("", 256, [-(2**255), 2**255 - 1]),
            ("U", 256, [0, 2**256 - 1]),
        )
    ),
    ("Float32", [1.5], ["1.5"]),
    ("Float64", [0.1, 1e300], ["0.1", "1e300"]),
    ("Decimal(9, 2)", [decimal.Decimal("-9999999.99")], None),
    ("Decimal(38, 10)", [decimal.Decimal("1234567890123456789012345678.0123456789")], None),
    ("Decimal(76, 0)", [decimal.Decimal("9" * 76)], None),
    ("Bool", [True, False], ["true", "false"]),
    ("String", ["", "é\0\n'"], ["", "é\0\n'"]),
    ("FixedString(4)", [b"ab\0\0", b"abcd"], ["ab", "abcd"]),
    ("Date", [dt.date(1970, 1, 1), dt.date(2149, 6, 6)], None),
    ("Date32", [dt.date(1900, 1, 1), dt.date(2299, 12, 31)], None),
    ("DateTime", [0, 2**32 - 1], ["1970-01-01 00:00:00", "2106-02-07 06:28:15"]),
    ("DateTime('Europe/Berlin')", [0], ["1970-01-01 01:00:00"]),
    ("DateTime64(3, 'UTC')", [-2208988800000, 10413791999999], ["1900-01-01 00:00:00.000", "2299-12-31 23:59:59.999"]),
    ("DateTime64(1, 'UTC')", [1500, -1500], ["1970-01-01 00:00:01.5", "1969-12-31 23:59:58.5"]),
    ("DateTime64(6, 'Europe/Berlin')", [MOMENT], ["2024-05-06 09:08:09.123456"]),
    ("DateTime64(9, 'UTC')", [2**63 - 1], ["2262-04-11 23:47:16.854775807"]),
    ("UUID", [UUID.bytes], [str(UUID)]),
    ("Enum8('b' = -1, 'a' = 1)", ["b", "a"], None),
    ("Enum16('x' = 1000)", ["x"], None),
    ("Nullable(UUID)", [UUID.bytes, None], [str(UUID), None]),
    ("Nullable(Int128)", [(-5).to_bytes(16, "little", signed=True), None], ["-5", None]),
    ("LowCardinality(Nullable(String))", ["a", None], ["a", None]),
    ("Array(Nullable(Int64))", [[1, None], []], ["[1,NULL]", "[]"]),
    ("Array(Array(UUID))", [[[UUID.bytes]], [[]]], [f"[['{UUID}']]", "[[]]"]),
    ("Map(LowCardinality(String), Int64)", [[("a", 1)], []], ["{'a':1}", "{}"]),
    ("Map(UUID, Array(String))", [[(UUID.bytes, ["x"])]], [f"{{'{UUID}':['x']}}"]),
    ("Tuple(`a.b` Int8, c Nullable(String))", [{"a.b": 1, "c": None}], ["(1,NULL)"]),
    ("Array(Tuple(d Decimal(5, 2)))", [[{"d": decimal.Decimal("1.20")}]], ["[(1.2)]"]),
]  # fmt: skip

# The engine takes one connection a process, so it runs in a process of its own.
ENGINE = """
import json, sys
import chdb._chdb as engine
connection = engine.connect(":memory:")
for number, name in enumerate(json.load(sys.stdin)):
    connection.query(f"CREATE TABLE t{number} (x {name}) ENGINE = Memory", "TSV")
    connection.query(f"INSERT INTO t{number} FROM INFILE '{sys.argv[1]}/{number}.arrow' FORMAT ArrowStream", "TSV")
    query = f"SELECT groupArray(tuple(toString(x), toTypeName(x))) FROM t{number}"
    answer = connection.query(query, "JSONCompactEachRow").bytes().decode()
    print(json.dumps(json.loads(answer)[0]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> list[list[list[str | None]]]:
    pytest.importorskip("chdb")
    folder = tmp_path_factory.mktemp("arrow")
    for number, (name, values, _) in enumerate(SAMPLES):
        table = pa.table({"x": pa.array(values, arrow_type(parse_type(name)))})
        with (
            pa.OSFile(str(folder / f"{number}.arrow"), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as out,
        ):
            out.write_table(table)
    names = json.dumps([clickhouse_name(parse_type(name)) for name, _, _ in SAMPLES])
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(folder)], input=names, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=[name for name, _, _ in SAMPLES])
def test_clickhouse_takes_the_arrow_type_without_loss_and_agrees_on_the_name(answers, number):
    name, values, texts = SAMPLES[number]
    assert [row[0] for row in answers[number]] == (texts or [str(value) for value in values])
    assert {parse_type(row[1]) for row in answers[number]} == {parse_type(name)}
    assert {" ".join(row[1].split()).replace("( ", "(") for row in answers[number]} == {name}
