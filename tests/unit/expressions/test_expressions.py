"""Expressions: what is let through before data moves, and what a row that fails costs."""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import arrow_type
from oncehouse.config.field_types import check_name
from oncehouse.expressions.compiler import Compiler
from oncehouse.expressions.duckdb_engine import open_engine
from oncehouse.expressions.evaluator import Evaluation, Evaluator
from oncehouse.expressions.scope import Expression, ExpressionError, Input, Scope

FIELDS = {
    "price": "Decimal(10, 2)",
    "rate": "Decimal(10, 2)",
    "ts": "DateTime64(3)",
    "kind": "LowCardinality(String)",
    "n": "UInt64",
    "i": "Int64",
    "note": "Nullable(String)",
    "u": "UUID",
    "wide": "Int128",
    "huge": "UInt128",
    "beyond": "Int256",
    "long": "Decimal(76, 3)",
    "ids": "Array(UUID)",
    "pair": "Tuple(a Int64, b Array(Int128))",
    "tags": "Map(String, UUID)",
    "Price": "String",
}
SCOPE = Scope(
    columns={name: parse_type(text) for name, text in FIELDS.items()},
    lookups={"products": {"name": parse_type("String"), "price": parse_type("Decimal(18, 4)")}},
)


def is_name(text: str) -> bool:
    try:
        check_name(text)
    except ValueError:
        return False
    return True


@pytest.fixture(scope="module")
def compiler():
    with Compiler(SCOPE) as opened:
        yield opened


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator()


def evaluate(evaluator: Evaluator, expression: Expression, columns: dict[str, list]) -> Evaluation:
    rows = len(next(iter(columns.values())))

    def column_of(found: Input) -> pa.Array:
        return pa.array(columns[found.column], arrow_type(found.type))

    return evaluator.evaluate([expression], column_of, rows=rows)[0]


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("price * rate", "Decimal(18, 4)"),
        ("ts::DATE", "Date"),
        ("upper(kind)", "String"),
        ("products.name", "Nullable(String)"),
        ("PRODUCTS.Name || kind", "Nullable(String)"),
        ("Price", "String"),
        ("beyond", "Int256"),
        ("long", "Decimal(76, 3)"),
        ("u", "UUID"),
        ("ids[1]", "Nullable(UUID)"),
        ("wide + 1", "Int128"),
        ("pair.b", "Array(Int128)"),
        ("tags['x']", "Nullable(UUID)"),
        ("list_transform([n], lambda x, i: x + i + n)", "Array(UInt64)"),
        ("note -> '$.a'", "Nullable(String)"),
        ("now()", "DateTime64(6)"),
        ("current_date", "Date"),
        ("{'a': i, 'b': [wide]}", "Tuple(a Int64, b Array(Int128))"),
        ("n -- how many", "UInt64"),
        ("list_sum([n, 1])", "Int128"),
        ("lpad(kind, 8, '0')", "String"),
        ("CASE WHEN n > 1 THEN 'many' ELSE 'few' END", "Enum8('many' = 1, 'few' = 2)"),
        ("1", "Int8"),
        ("NULL", "Nullable(String)"),
    ],
)
def test_a_scalar_expression_over_known_columns_is_let_through(compiler, text, type_):
    assert compiler.compile(text, parse_type(type_)).sql


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("n +", "no SQL expression: it ends too early"),
        ("(n", "it ends too early"),
        ("n n", 'near "n"'),
        ("click", "a text stands in single quotes: 'click'"),
        ("toDate(n)", "functions are DuckDB's"),
        ("n; DROP TABLE block", "no SQL expression"),
        ("n) FROM block --", "no SQL expression"),
        ("n), (n", "one expression"),
        ("n AS x", "no SQL expression"),
        ("*", "star"),
        ("COLUMNS('n')", "star"),
        ("$1", "parameter"),
        ("#1", "name the column"),
        ("ratee", "did you mean 'rate'"),
        ("products.nam", "did you mean 'products.name'"),
        ("block.n", "no column 'block.n'"),
        ("rowid", "no column 'rowid'"),
        ("uppr(kind)", 'Did you mean "upper"'),
        ("kind + 1", "argument types"),
        ("sum(n)", "other rows"),
        ("geomean(n)", "other rows"),
        ("count(*)", "other rows"),
        ("unnest(ids)", "other rows"),
        ("row_number() OVER ()", "neighbouring rows"),
        ("lag(n) OVER (ORDER BY n)", "neighbouring rows"),
        ("(SELECT 1)", "query of its own"),
        ("EXISTS (FROM duckdb_settings())", "query of its own"),
        ("n IN (SELECT 1)", "query of its own"),
        ("random()", "something else each time"),
        ("gen_random_uuid()", "something else each time"),
        ("pg_sleep(1)", "something else each time"),
        ("range(n)", "not one of the event"),
        ("rpad(kind, n::INT, 'x')", "not one of the event"),
        ("repeat([1], n::INT)", "not one of the event"),
        ("beyond + 1", "cannot compute with"),
        ("(" * 2000 + "n" + ")" * 2000, "depth"),
        ("n + " * 5000 + "n", "longer than"),
        ("n \0", "no SQL expression"),
    ],
)
def test_everything_else_is_refused_with_what_is_wrong(compiler, text, told):
    with pytest.raises(ExpressionError, match=told.replace("(", r"\(").replace("*", r"\*")):
        compiler.compile(text, parse_type("UInt64"))


@pytest.mark.parametrize(
    "text",
    [
        "read_csv('/etc/passwd')",
        "(FROM read_csv('/etc/passwd'))",
        "(SELECT content FROM read_text('/etc/passwd'))",
        "read_text('/etc/passwd')",
        "read_blob('/etc/passwd')",
        "glob('/etc/*')",
        "'/etc/passwd'::BLOB; COPY (SELECT 1) TO '/tmp/out'",
        "COPY (SELECT 1) TO '/tmp/out'",
        "ATTACH '/tmp/other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "SET memory_limit = '100GB'",
        "getenv('HOME')",
        "current_setting('memory_limit')",
        "getvariable('x')",
        "system.main.upper(kind)",
        "query('SELECT 1')",
        "query_table('block')",
        "duckdb_secrets()",
        "write_log('x')",
        "nextval('s')",
        "json_execute_serialized_sql('{}')",
    ],
)
def test_an_expression_reaches_nothing_but_its_row(compiler, text):
    with pytest.raises(ExpressionError):
        compiler.compile(text, parse_type("Nullable(String)"))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY (SELECT 1) TO '/tmp/oncehouse-never'",
        "ATTACH '/tmp/oncehouse-never.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SET threads = 8",
        "SELECT * FROM hidden",
    ],
)
def test_the_engine_itself_is_shut_in(statement):
    """Whatever slipped through: no file, no setting, no variable of this program."""
    hidden = pa.table({"secret": [1]})
    engine = open_engine()
    with pytest.raises(Exception, match=r"disabled|locked|Cannot access|does not exist"):
        engine.execute(statement)
    engine.close()
    assert hidden.num_rows == 1


@pytest.mark.parametrize(
    ("text", "type_", "told"),
    [
        ("price * rate", "Decimal(18, 2)", r"DECIMAL\(18,4\).*CAST\(… AS DECIMAL\(18, 2\)\)"),
        ("n / 2", "UInt64", "gives DOUBLE.*UBIGINT"),
        ("n / 2", "Decimal(10, 2)", "gives DOUBLE"),
        ("n", "Float64", "gives UBIGINT.*DOUBLE"),
        ("n / 2", "Float32", "gives DOUBLE.*FLOAT"),
        ("note", "UInt64", "gives VARCHAR.*UBIGINT"),
        ("ts", "Date", "TIMESTAMP.*DATE"),
        ("ts::DATE", "DateTime", "gives DATE"),
        ("n > 1", "UInt8", "gives BOOLEAN"),
        ("kind", "UUID", "gives VARCHAR.*UUID"),
        ("{'b': 1}", "Tuple(a Int64)", "gives STRUCT"),
        ("[1.5]", "Array(Int64)", "gives DECIMAL"),
        ("NULL", "String", r"Nullable\(String\)"),
        ("long", "Decimal(76, 2)", "copied as it is"),
        ("INTERVAL 1 DAY", "String", "gives INTERVAL"),
    ],
)
def test_a_kind_that_does_not_belong_into_the_column_is_told_with_its_cast(compiler, text, type_, told):
    with pytest.raises(ExpressionError, match=told):
        compiler.compile(text, parse_type(type_))


def test_names_that_differ_in_capitals_alone_are_two_columns(compiler, evaluator):
    columns = {"price": [decimal.Decimal("1.50")], "Price": ["dear"]}
    upper = compiler.compile("\"Price\" || '!'", parse_type("String"))
    lower = compiler.compile("price + 1", parse_type("Decimal(12, 2)"))
    assert evaluate(evaluator, upper, columns).values.to_pylist() == ["dear!"]
    assert evaluate(evaluator, lower, columns).values.to_pylist() == [decimal.Decimal("2.50")]
    with pytest.raises(ExpressionError, match="no column 'PRICE'"):
        compiler.compile("PRICE", parse_type("String"))


@pytest.mark.parametrize(
    ("name", "type_", "value"),
    [
        ("wide", "Int128", -(2**127)),
        ("wide", "Int128", 2**127 - 1),
        ("huge", "UInt128", 2**128 - 1),
        ("huge", "UInt128", 0),
    ],
)
def test_integers_of_128_bits_pass_the_engine_exactly(compiler, evaluator, name, type_, value):
    signed = type_ == "Int128"
    stored = [value.to_bytes(16, "little", signed=signed), None]
    expression = compiler.compile(f"CASE WHEN true THEN {name} END", parse_type(f"Nullable({type_})"))
    values = evaluate(evaluator, expression, {name: stored}).values
    assert values.to_pylist() == [decimal.Decimal(value), None]


def test_nested_values_keep_their_bytes(compiler, evaluator):
    ids = [[bytes(range(16)), bytes(16)], [], None]
    expression = compiler.compile("{'v': list_reverse(ids)}", parse_type("Tuple(v Array(UUID))"))
    values = evaluate(evaluator, expression, {"ids": ids}).values
    assert values.to_pylist() == [{"v": [bytes(16), bytes(range(16))]}, {"v": []}, {"v": None}]


def test_an_expression_that_reads_no_column_has_a_value_for_each_row(compiler, evaluator):
    expression = compiler.compile("1 + 1", parse_type("Int32"))
    assert evaluate(evaluator, expression, {"n": [1, 2, 3]}).values.to_pylist() == [2, 2, 2]


def test_rows_that_fail_are_told_and_their_neighbours_have_their_values(compiler, evaluator):
    expression = compiler.compile("note::INTEGER", parse_type("Nullable(Int32)"))
    outcome = evaluate(evaluator, expression, {"note": ["1", "x", None, "4", "99999999999"]})
    assert set(outcome.failures) == {1, 4}
    assert "Could not convert string 'x'" in outcome.failures[1]
    assert [outcome.values[row].as_py() for row in (0, 2, 3)] == [1, None, 4]


def test_a_null_that_was_computed_is_no_failure(compiler, evaluator):
    expression = compiler.compile("nullif(note, 'a')::INTEGER // 1", parse_type("Nullable(Int32)"))
    outcome = evaluate(evaluator, expression, {"note": ["a", None, "b", "3"]})
    assert set(outcome.failures) == {2}
    assert [outcome.values[row].as_py() for row in (0, 1, 3)] == [None, None, 3]


def test_a_failure_that_no_guard_catches_is_narrowed_to_its_row(compiler, monkeypatch):
    """A result larger than the engine's memory fails the query, not only the value."""
    monkeypatch.setattr("oncehouse.expressions.duckdb_engine.MEMORY_LIMIT", "16MB")
    expression = compiler.compile(f"replace(note, 'a', '{'b' * 400}')", parse_type("Nullable(String)"))
    notes = ["c"] * 40
    notes[17] = "a" * 100_000
    outcome = evaluate(Evaluator(), expression, {"note": notes})
    assert set(outcome.failures) == {17}
    assert "emory" in outcome.failures[17]
    assert [value for row, value in enumerate(outcome.values.to_pylist()) if row != 17] == ["c"] * 39


def test_several_expressions_fail_each_for_itself(compiler, evaluator):
    both = [
        compiler.compile("100 // i", parse_type("Int64")),
        compiler.compile("note::INTEGER", parse_type("Nullable(Int32)")),
    ]
    columns = {"i": pa.array([0, 5, 10]), "note": pa.array(["1", "2", "x"])}
    first, second = evaluator.evaluate(both, lambda found: columns[found.column], rows=3)
    assert (set(first.failures), set(second.failures)) == ({0}, {2})
    assert first.values.to_pylist()[1:] == [20, 10]
    assert second.values.to_pylist()[:2] == [1, 2]


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60),
    divisors=st.lists(st.integers(-3, 3), min_size=60, max_size=60),
)
def test_values_and_failures_are_those_of_each_row_alone(compiler, evaluator, values, divisors):
    expression = compiler.compile("i // (n::BIGINT - 3)", parse_type("Int64"))
    divisors = [divisor + 3 for divisor in divisors[: len(values)]]
    outcome = evaluate(evaluator, expression, {"i": values, "n": divisors})
    for row, (value, divisor) in enumerate(zip(values, divisors, strict=True)):
        fails = divisor == 3 or (value == -(2**63) and divisor == 2)
        assert (row in outcome.failures) == fails
        if not fails:
            quotient = abs(value) // abs(divisor - 3)
            assert outcome.values[row].as_py() == (quotient if (value < 0) == (divisor < 3) else -quotient)


names = st.text(min_size=1, max_size=20).filter(is_name)


@settings(max_examples=60, deadline=None)
@given(found=st.lists(names, min_size=1, max_size=4, unique=True))
def test_whatever_columns_are_called_each_is_found(evaluator, found):
    scope = Scope(columns={name: parse_type("Int64") for name in found}, lookups={})
    with Compiler(scope) as compiler:
        for number, name in enumerate(found):
            quoted = name.replace('"', '""')
            expression = compiler.compile(f'"{quoted}" + 1', parse_type("Int64"))
            columns = {other: [place] for place, other in enumerate(found)}
            assert evaluate(evaluator, expression, columns).values.to_pylist() == [number + 1]


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_is_refused_or_is_one_expression(compiler, text):
    try:
        expression = compiler.compile(text, parse_type("Nullable(String)"))
    except ExpressionError:
        return
    assert expression.sql


def test_a_block_of_many_failures_is_done_in_one_go(compiler, evaluator):
    expression = compiler.compile("note::INTEGER", parse_type("Nullable(Int32)"))
    notes = np.where(np.arange(3000) % 2 == 0, "7", "seven").tolist()
    outcome = evaluate(evaluator, expression, {"note": notes})
    assert set(outcome.failures) == set(range(1, 3000, 2))
    assert all("Could not convert string 'seven'" in text for text in outcome.failures.values())
