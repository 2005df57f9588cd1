"""Shaping: which rows stay, what they gain, and that a row that fails costs its neighbours nothing."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import arrow_type
from oncehouse.config.file_loader import parse_pipeline
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.formats.base import DecodeLimits
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.transform import lookup_join
from oncehouse.pipeline.transform.lookup_join import LoadedLookup
from oncehouse.pipeline.transform.plan_builder import check_transform, plan_transform
from oncehouse.pipeline.transform.transformer import Transformed, Transformer, TransformingDecoder

FIELDS = {"id": "UInt64", "kind": "LowCardinality(String)", "amount": "String", "product": "UInt32"}
EVENTS = {
    "id": [1, 2, 3, 4],
    "kind": ["buy", "ping", "view", "buy"],
    "amount": ["1.50", "none", "x", "2"],
    "product": [10, 11, 12, 11],
}


def make_pipeline(folder: Path, *, tables: list[dict] | None = None, **shape) -> Pipeline:
    return Pipeline(
        pipeline="shop",
        source={"kafka": {"bootstrap_servers": "localhost:9092", "topics": ["events"]}, "fields": FIELDS},
        identity={"fields": ["id"]},
        shape=shape,
        tables=tables or [{"name": "events"}],
        clickhouse={"url": "http://localhost:8123"},
        ledger={"catalog": "sqlite:///catalog.db", "files": str(folder / "files")},
    )


def transform(pipeline: Pipeline, events: dict = EVENTS) -> Transformed:
    rows = pa.RecordBatch.from_arrays(
        [pa.array(events[name], arrow_type(parse_type(text))) for name, text in FIELDS.items()],
        names=[*FIELDS],
    )
    plan = plan_transform(pipeline, token=1)
    assert plan is not None
    return Transformer(plan, FileStore(pipeline.ledger.files)).transform(rows)


def rejected(transformed: Transformed) -> dict[int, str]:
    assert {str(found.reason) for found in transformed.rejected} <= {"not_shaped"}
    return {found.index: found.detail for found in transformed.rejected}


def write_function(folder: Path, body: str) -> dict[str, str]:
    file = folder / "enrich.py"
    file.write_text("import pyarrow as pa\nimport pyarrow.compute as pc\n\n" + textwrap.dedent(body))
    return {"file": str(file), "name": "enrich"}


# -- expressions ------------------------------------------------------------------------------------------


def test_rows_gain_columns_of_their_declared_types_and_keep_their_fields(tmp_path):
    columns = {
        "total": {"type": "Nullable(Decimal(18, 4))", "sql": "TRY_CAST(amount AS DECIMAL(10, 2)) * 2 + 0"},
        "double": {"type": "UInt8", "sql": "id * 2"},
        "same": {"type": "String", "sql": "kind"},
    }
    transformed = transform(make_pipeline(tmp_path, columns=columns))
    assert transformed.rows.schema.names == [*FIELDS, "total", "double", "same"]
    assert transformed.rows.schema.field("total").type == pa.decimal128(18, 4)
    assert transformed.rows.schema.field("double").type == pa.uint8()
    assert [str(value) for value in transformed.rows.column("total").to_pylist()] == [
        "3.0000",
        "None",
        "None",
        "4.0000",
    ]
    assert transformed.rows.select([*FIELDS]).to_pydict() == EVENTS


def test_a_row_whose_expression_fails_is_rejected_and_names_column_and_error(tmp_path):
    columns = {"total": {"type": "Decimal(10, 2)", "sql": "amount::DECIMAL(10, 2)"}}
    transformed = transform(make_pipeline(tmp_path, columns=columns))
    found = rejected(transformed)
    assert set(found) == {1, 2}
    assert found[2].startswith("total: Conversion Error: ")
    assert '"x"' in found[2]
    assert transformed.rows.column("id").to_pylist() == [1, 4]
    assert transformed.taken.tolist() == [0, 3]


def test_a_value_that_does_not_fit_its_column_is_rejected(tmp_path):
    transformed = transform(
        make_pipeline(tmp_path, columns={"small": {"type": "UInt8", "sql": "product * 25"}})
    )
    assert set(rejected(transformed)) == {1, 2, 3}
    assert rejected(transformed)[1].startswith("small: ")
    assert transformed.rows.column("small").to_pylist() == [250]


def test_null_in_a_column_that_takes_none_is_rejected(tmp_path):
    columns = {"bought": {"type": "String", "sql": "CASE WHEN kind = 'buy' THEN amount END"}}
    transformed = transform(make_pipeline(tmp_path, columns=columns))
    assert set(rejected(transformed)) == {1, 2}
    assert "null" in rejected(transformed)[1]


def test_what_where_does_not_want_is_skipped_and_never_computed(tmp_path):
    transformed = transform(
        make_pipeline(
            tmp_path,
            where="kind = 'buy'",
            columns={"total": {"type": "Decimal(10, 2)", "sql": "amount::DECIMAL(10, 2)"}},
        )
    )
    assert not transformed.rejected
    assert (transformed.taken.tolist(), transformed.skipped.tolist()) == ([0, 3], [1, 2])


def test_where_that_is_null_skips_and_where_that_fails_rejects(tmp_path):
    transformed = transform(make_pipeline(tmp_path, where="nullif(amount, 'none')::DOUBLE > 1.7"))
    assert (transformed.taken.tolist(), transformed.skipped.tolist()) == ([3], [0, 1])
    assert rejected(transformed)[2].startswith("where: ")


def test_an_event_goes_to_each_table_whose_route_is_true(tmp_path):
    tables = [
        {"name": "all"},
        {"name": "buys", "route": {"where": "kind = 'buy'"}},
        {"name": "large", "route": {"where": "double > 4 AND kind <> 'view'"}},
    ]
    pipeline = make_pipeline(tmp_path, tables=tables, columns={"double": {"type": "UInt64", "sql": "id * 2"}})
    transformed = transform(pipeline)
    assert [transformed.rows.column(name).to_pylist() for name in transformed.rows.schema.names[-2:]] == [
        [True, False, False, True],
        [False, False, False, True],
    ]


def test_a_route_that_fails_rejects_its_row_alone(tmp_path):
    transformed = transform(
        make_pipeline(tmp_path, tables=[{"name": "some", "route": {"where": "amount::INT > 0"}}])
    )
    assert set(rejected(transformed)) == {1, 2}
    assert rejected(transformed)[1].startswith("route of some: ")


def test_an_empty_block_keeps_its_columns(tmp_path):
    empty = {name: [] for name in FIELDS}
    tables = [{"name": "all", "route": {"where": "id > 1"}}]
    columns = {"double": {"type": "UInt8", "sql": "id * 2"}}
    transformed = transform(make_pipeline(tmp_path, tables=tables, where="id > 1", columns=columns), empty)
    assert transformed.rows.num_rows == 0
    assert transformed.rows.schema.field("double").type == pa.uint8()


@settings(max_examples=15, deadline=None)
@given(amounts=st.lists(st.sampled_from(["1", "2.5", "x", "", "-3", "none"]), max_size=40))
def test_every_row_is_taken_rejected_or_skipped_once(tmp_path_factory, amounts):
    events = {
        "id": list(range(len(amounts))),
        "kind": ["buy" if len(amount) % 2 else "view" for amount in amounts],
        "amount": amounts,
        "product": [1] * len(amounts),
    }
    pipeline = make_pipeline(
        tmp_path_factory.getbasetemp(),
        where="kind = 'buy' OR amount = ''",
        columns={"total": {"type": "Int32", "sql": "amount::INT"}},
    )
    transformed = transform(pipeline, events)
    places = [*transformed.taken.tolist(), *rejected(transformed), *transformed.skipped.tolist()]
    assert sorted(places) == list(range(len(amounts)))
    for place in transformed.taken.tolist():
        assert amounts[place] in {"1", "2.5", "-3"}
    for place in rejected(transformed):
        assert amounts[place] in {"x", ""}


def test_places_are_those_of_the_block_also_when_decoding_has_left_some_out(tmp_path):
    pipeline = make_pipeline(
        tmp_path, where="kind <> 'ping'", columns={"total": {"type": "Int32", "sql": "amount::INT"}}
    )
    plan = plan_transform(pipeline, token=1)
    assert plan is not None
    types = {name: parse_type(text) for name, text in FIELDS.items()}
    decoder = TransformingDecoder(
        JsonFormat().make_decoder(types, (), DecodeLimits(max_message_bytes=1000, max_depth=8)),
        Transformer(plan, FileStore(pipeline.ledger.files)),
    )
    event = '{"id": 1, "kind": "%s", "amount": "%s", "product": 1}'
    values = [
        None,
        "{",
        event % ("buy", "x"),
        event % ("ping", "x"),
        event % ("buy", "7"),
        None,
        event % ("buy", ""),
    ]
    block = pa.record_batch(
        [pa.array([value and value.encode() for value in values], pa.binary())], names=["value"]
    )
    decoded = decoder.decode(block)
    assert decoded.rows.column("total").to_pylist() == [7]
    assert decoded.taken.tolist() == [4]
    assert decoded.skipped.tolist() == [0, 3, 5]
    assert [(found.index, str(found.reason)) for found in decoded.rejected] == [
        (1, "not_json"),
        (2, "not_shaped"),
        (6, "not_shaped"),
    ]


# -- the function -----------------------------------------------------------------------------------------

ADD_LENGTH = """
    def enrich(events):
        return events.append_column("length", pc.utf8_length(events["amount"]))
"""


def test_a_function_gives_the_columns_that_are_declared_without_sql(tmp_path):
    columns = {"double": {"type": "UInt64", "sql": "id * 2"}, "length": {"type": "UInt8"}}
    pipeline = make_pipeline(tmp_path, columns=columns, function=write_function(tmp_path, ADD_LENGTH))
    check_transform(pipeline)
    transformed = transform(pipeline)
    assert transformed.rows.column("length").to_pylist() == [4, 4, 1, 1]
    assert transformed.rows.schema.field("length").type == pa.uint8()
    assert transformed.rows.schema.names == [*FIELDS, "double", "length"]


def test_rows_that_a_function_leaves_out_are_skipped_in_whatever_order_it_gives_the_rest(tmp_path):
    function = write_function(
        tmp_path,
        """
        def enrich(events):
            kept = events.filter(pc.equal(events["kind"], "buy")).sort_by([("_row", "descending")])
            return kept.append_column("copy", kept["id"]).select(["copy", "_row"])
        """,
    )
    pipeline = make_pipeline(tmp_path, columns={"copy": {"type": "UInt64"}}, function=function)
    check_transform(pipeline)
    transformed = transform(pipeline)
    assert transformed.rows.column("copy").to_pylist() == transformed.rows.column("id").to_pylist() == [1, 4]
    assert transformed.skipped.tolist() == [1, 2]


def test_a_function_may_only_leave_rows_out(tmp_path):
    function = write_function(
        tmp_path,
        """
        def enrich(events):
            return events.filter(pc.greater(events["id"], 2))
        """,
    )
    pipeline = make_pipeline(tmp_path, function=function)
    check_transform(pipeline)
    transformed = transform(pipeline)
    assert (transformed.taken.tolist(), transformed.skipped.tolist()) == ([2, 3], [0, 1])
    assert transformed.rows.schema.names == [*FIELDS]


@pytest.mark.parametrize("trouble", ["raise ValueError('bad amount')", "raise SystemExit(3)", "return None"])
def test_the_errors_of_a_function_cost_only_the_rows_that_cause_them(tmp_path, trouble):
    function = write_function(
        tmp_path,
        f"""
        def enrich(events):
            if "x" in events["amount"].to_pylist():
                {trouble}
            return events.append_column("n", events["id"])
        """,
    )
    pipeline = make_pipeline(tmp_path, columns={"n": {"type": "UInt64"}}, function=function)
    transformed = transform(pipeline)
    assert set(rejected(transformed)) == {2}
    assert rejected(transformed)[2].startswith("function: ")
    assert transformed.rows.column("n").to_pylist() == [1, 2, 4]


def test_a_value_of_a_function_that_does_not_fit_is_rejected(tmp_path):
    function = write_function(
        tmp_path,
        """
        def enrich(events):
            return events.append_column("n", pc.multiply(events["id"], 100))
        """,
    )
    pipeline = make_pipeline(tmp_path, columns={"n": {"type": "UInt8"}}, function=function)
    transformed = transform(pipeline)
    assert set(rejected(transformed)) == {2, 3}
    assert rejected(transformed)[2].startswith("n: ")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def other(events): return events", "has no function 'enrich'"),
        ("import nowhere_to_be_found", "cannot be loaded"),
        ("def enrich(events) return", "cannot be loaded"),
        ("def enrich(events): return events", "the column 'n' once"),
        ("def enrich(events): return events.drop_columns(['_row'])", "the column '_row' once"),
        ("def enrich(events): return 5", "pyarrow Table, not int"),
        (
            "def enrich(events): return pa.table({'_row': pa.array([7]), 'n': pa.array([1])})",
            "only those it got",
        ),
        (
            "def enrich(events): return pa.table({'_row': pa.array(['a']), 'n': pa.array([1])})",
            "whole numbers",
        ),
        ("def enrich(events): return 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_function_that_breaks_its_contract_is_refused_before_data_moves(tmp_path, body, told):
    pipeline = make_pipeline(
        tmp_path, columns={"n": {"type": "UInt64"}}, function=write_function(tmp_path, body)
    )
    with pytest.raises(ConfigurationError, match=told):
        check_transform(pipeline)


def test_a_function_that_repeats_rows_makes_no_row_twice(tmp_path):
    function = write_function(
        tmp_path,
        """
        def enrich(events):
            twice = pa.concat_tables([events, events])
            return twice.append_column("n", twice["id"])
        """,
    )
    transformed = transform(make_pipeline(tmp_path, columns={"n": {"type": "UInt64"}}, function=function))
    assert set(rejected(transformed)) == {0, 1, 2, 3}


# -- look-ups ---------------------------------------------------------------------------------------------

PRODUCTS = [(10, "ant", "1.25"), (11, "bee", "2.50")]


def write_lookup(folder: Path, suffix: str, rows=PRODUCTS) -> Path:
    file = folder / f"products{suffix}"
    objects = [{"product": key, "name": name, "price": float(price)} for key, name, price in rows]
    match suffix:
        case ".csv":
            lines = ["product,name,price", *(",".join(map(str, row)) for row in rows)]
            file.write_text("\n".join(lines) + "\n")
        case ".json":
            file.write_text(json.dumps(objects))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(objects), file)
        case _:
            file.write_text("\n".join(map(json.dumps, objects)))
    return file


def look_up(folder: Path, suffix: str = ".csv", **changes) -> Pipeline:
    lookup = {
        "file": str(folder / f"products{suffix}"),
        "key": "product",
        "columns": {"name": "String", "price": "Decimal(10, 2)"},
    }
    return make_pipeline(
        folder,
        lookups={"products": lookup | changes},
        columns={
            "product_name": {"type": "Nullable(String)", "sql": "products.name"},
            "cost": {"type": "Nullable(Decimal(20, 2))", "sql": "products.price * id::INT"},
        },
    )


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".ndjson", ".parquet"])
def test_a_look_up_gives_its_columns_by_key_and_null_where_it_has_none(tmp_path, suffix):
    write_lookup(tmp_path, suffix)
    pipeline = look_up(tmp_path, suffix)
    check_transform(pipeline)
    transformed = transform(pipeline)
    assert transformed.rows.column("product_name").to_pylist() == ["ant", "bee", None, "bee"]
    costs = [None if cost is None else str(cost) for cost in transformed.rows.column("cost").to_pylist()]
    assert costs == ["1.25", "5.00", None, "10.00"]


def test_a_look_up_serves_where_and_columns_alike(tmp_path):
    write_lookup(tmp_path, ".csv")
    pipeline = look_up(tmp_path)
    where = pipeline.shape.model_copy(update={"where": "products.name IS NULL OR products.name = 'bee'"})
    transformed = transform(pipeline.model_copy(update={"shape": where}))
    assert transformed.taken.tolist() == [1, 2, 3]
    assert transformed.rows.column("product_name").to_pylist() == ["bee", None, "bee"]


def test_a_look_up_is_pinned_until_its_file_changes(tmp_path):
    write_lookup(tmp_path, ".csv")
    pipeline = look_up(tmp_path)
    before, again = plan_transform(pipeline, token=5), plan_transform(pipeline, token=5)
    assert before == again
    write_lookup(tmp_path, ".csv", [(10, "asp", "3")])
    after = plan_transform(pipeline, token=5)
    assert after != before
    store = FileStore(pipeline.ledger.files)
    assert len(list(store.walk("shop/lookups/"))) == 1
    assert transform(pipeline).rows.column("product_name").to_pylist() == ["asp", None, None, None]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("product,name\n1,a\n", "no column 'price'"),
        ("product,name,price\nx,a,1\n", "row 1, column 'product'"),
        ("product,name,price\n1,a,1.234\n", "row 1, column 'price'"),
        ("product,name,price\n1,a,1\n1,b,2\n", "the key 1 more than once"),
        ("product,name,price\n5000000000,a,1\n", "row 1, column 'product'"),
        ("product,name,price\n1,a\n", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_a_look_up_that_cannot_be_used_is_refused_with_its_place(tmp_path, content, told):
    (tmp_path / "products.csv").write_text(content)
    with pytest.raises(ConfigurationError, match=f"shape.lookups.products: .*products.csv .*{told}"):
        check_transform(look_up(tmp_path))


def test_a_look_up_that_is_missing_or_too_large_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="No such file"):
        check_transform(look_up(tmp_path))
    write_lookup(tmp_path, ".csv")
    monkeypatch.setattr("oncehouse.pipeline.transform.lookup_tables.MAX_FILE_BYTES", 10)
    with pytest.raises(ConfigurationError, match="larger than"):
        check_transform(look_up(tmp_path))
    monkeypatch.undo()
    monkeypatch.setattr("oncehouse.pipeline.transform.lookup_tables.MAX_MEMORY_BYTES", 10)
    with pytest.raises(ConfigurationError, match="of memory"):
        check_transform(look_up(tmp_path))


keys = st.one_of(
    st.lists(st.integers(0, 2**32 - 1), unique=True, min_size=1, max_size=30).map(
        lambda found: pa.array(found, pa.uint32())
    ),
    st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=30).map(
        lambda found: pa.array(found, pa.int64())
    ),
    st.lists(st.text(max_size=5), unique=True, min_size=1, max_size=30).map(pa.array),
    st.lists(st.binary(min_size=16, max_size=16), unique=True, min_size=1, max_size=30).map(
        lambda found: pa.array(found, pa.binary(16))
    ),
    st.lists(st.dates(), unique=True, min_size=1, max_size=30).map(pa.array),
)


@pytest.mark.parametrize("small_rows", [0, 1000])
@settings(max_examples=40, deadline=None)
@given(known=keys, data=st.data())
def test_keys_are_found_alike_in_small_and_large_look_ups(small_rows, known, data):
    kept = data.draw(st.integers(1, len(known)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup_join, "SMALL_ROWS", small_rows)
        joined = LoadedLookup(pa.table({"key": known.slice(0, kept), ".v": pa.array(np.arange(kept))}))
        asked = pa.concat_arrays([known, pa.nulls(1, known.type), known])
        found = joined.take("v", joined.find(asked)).to_pylist()
    once = [row if row < kept else None for row in range(len(known))]
    assert found == [*once, None, *once]


def test_keys_that_share_a_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(lookup_join, "SMALL_ROWS", 0)
    monkeypatch.setattr(lookup_join, "xxh3_hashes", lambda column: np.zeros(len(column), dtype=np.uint64))
    one = LoadedLookup(pa.table({"key": ["a"], ".v": [1]}))
    assert one.take("v", one.find(pa.array(["a", "b"]))).to_pylist() == [1, None]
    two = LoadedLookup(pa.table({"key": ["a", "b"], ".v": [1, 2]}))
    assert two.take("v", two.find(pa.array(["b", "a", "c"]))).to_pylist() == [2, 1, None]


# -- the pipeline file ------------------------------------------------------------------------------------

FILE = """\
pipeline: shop
source:
  kafka: {bootstrap_servers: "localhost:9092", topics: [events]}
  fields: {id: UInt64, kind: String, price: "Decimal(10, 2)"}
identity: {fields: [id]}
shape:
  lookups:
    products: {file: products.csv, key: id, columns: {name: String}}
  where: kind <> 'ping'
  columns:
    total:
      type: Decimal(18, 2)
      sql: price * 2
  function: {file: enrich.py, name: enrich}
tables:
  - name: events
    columns: {id: id, total: total}
    route:
      where: total > 1
clickhouse: {url: "http://localhost:8123"}
ledger: {catalog: "sqlite:///catalog.db", files: files}
"""


def test_a_file_with_shape_loads_with_paths_from_its_folder(tmp_path):
    pipeline = parse_pipeline(FILE, "shop.yaml", folder=tmp_path)
    assert pipeline.shape.lookups["products"].file == str(tmp_path / "products.csv")
    assert pipeline.shape.function is not None
    assert pipeline.shape.function.file == str(tmp_path / "enrich.py")
    assert pipeline.columns == {**pipeline.source.fields, "total": "Decimal(18, 2)"}
    assert set(pipeline.expressions.columns) == {"total"}
    assert set(pipeline.expressions.routes) == {0}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            "sql: price * 2",
            "sql: prize * 2",
            "shop.yaml:13: shape.columns.total.sql: there is no column 'prize'",
        ),
        ("sql: price * 2", "sql: price / 2", "shop.yaml:13: shape.columns.total.sql: gives DOUBLE"),
        (
            "where: kind <> 'ping'",
            "where: kind",
            "shop.yaml:9: shape.where: gives VARCHAR, not true or false",
        ),
        (
            "where: total > 1",
            "where: totl > 1",
            "shop.yaml:19: tables[0].route.where: there is no column 'totl'",
        ),
        (
            "where: total > 1",
            "where: sum(total) > 1",
            "shop.yaml:19: tables[0].route.where: looks at other rows",
        ),
        ("where: total > 1", "field: total", "shop.yaml:18: tables[0].route: write either"),
        ("where: total > 1", "{where: total > 1, field: id, values: [1]}", "write either"),
        ("    total:", "    kind:", "shop.yaml:11: shape.columns.kind: is a field of the event already"),
        ("    products:", "    kind:", "shop.yaml:8: shape.lookups.kind: is a column already"),
        ("key: id,", "key: ident,", "shop.yaml:8: shape.lookups.products.key: 'ident' is not declared"),
        ("key: id,", "key: x, field: price,", "Decimal(10, 2) cannot lead into a look-up"),
        ("products.csv", "products.txt", "must end with .parquet, .csv"),
        ("      sql: price * 2\n  function: {file: enrich.py, name: enrich}\n", "", "has no `sql`"),
        ("identity: {fields: [id]}", "identity: {fields: [total]}", "'total' is computed"),
        ("name: enrich}", "name: to enrich}", "no name of a Python function"),
        ("total: total", "total: sum", "'sum' is not declared"),
        ("{id: UInt64,", "{_row: UInt64, id: UInt64,", "numbers its rows by '_row'"),
    ],
)
def test_what_is_wrong_with_shape_is_told_with_its_line(before, after, told):
    assert before in FILE
    with pytest.raises(ConfigurationError) as caught:
        parse_pipeline(FILE.replace(before, after), "shop.yaml")
    assert told in str(caught.value)


def test_fields_that_were_learnt_later_are_compiled_in(tmp_path):
    """Whoever widens a field, or adds one, copies the pipeline; its expressions are those of its fields."""
    pipeline = make_pipeline(tmp_path, columns={"twice": {"type": "UInt64", "sql": "product * 2"}})
    fields = {**FIELDS, "product": "UInt64", "extra": "Nullable(String)"}
    wider = pipeline.model_copy(update={"source": pipeline.source.model_copy(update={"fields": fields})})
    (found,) = wider.expressions.columns["twice"].inputs
    assert found.type == parse_type("UInt64")
    taken = pipeline.model_copy(
        update={"source": pipeline.source.model_copy(update={"fields": {**FIELDS, "twice": "String"}})}
    )
    with pytest.raises(ConfigurationError, match=r"shape\.columns\.twice: is a field of the event already"):
        _ = taken.expressions


def test_what_a_format_adds_for_its_identity_cannot_be_computed_over():
    text = FILE.replace("source:\n", "source:\n  format: debezium\n").replace("total", "_key")
    with pytest.raises(ConfigurationError, match=r"shape\.columns\._key: is a field of the event already"):
        parse_pipeline(text.replace("identity: {fields: [id]}", "identity: {}"), "shop.yaml")
