"""Whatever bytes: an envelope of Debezium is a row or a rejection, and costs only itself."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from debezium_examples import FIELDS, FIRST_OFFSET, MYSQL, POSTGRES, column, decode, describe, envelope, write
from fuzzing import examples
from oncehouse.pipeline.formats.base import Decoded

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "name", "scale", "value", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
ENVELOPES = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from("cudrtm") | JSON,
        "after": JSON | st.fixed_dictionaries({"id": JSON, "name": JSON}),
        "before": JSON,
        "source": JSON | st.just(POSTGRES) | st.just(MYSQL),
    },
)
SCHEMAS = (
    st.none()
    | JSON
    | st.just(describe(column("int64") | {"field": "id"}, column("string") | {"field": "name"}))
)


VALUES = st.binary(max_size=30) | st.builds(write, ENVELOPES, SCHEMAS)
RECORDS = st.lists(st.tuples(VALUES, st.none() | st.binary(max_size=10)), min_size=1, max_size=8)
EMPTY_DELETE = write({"op": "d", "before": {}, "source": POSTGRES})


@given(RECORDS)
@example([(b"", None), (EMPTY_DELETE, b"\x80")])
@examples(40)
def test_any_bytes_are_a_row_or_a_rejection_and_cost_only_themselves(records):
    values, keys = (list(column) for column in zip(*records, strict=True))
    decoded = decode(FIELDS, values, keys)
    places = [*decoded.taken.tolist(), *(one.index for one in decoded.rejected), *decoded.skipped.tolist()]
    assert sorted(places) == list(range(len(values)))
    found = dict(zip(decoded.taken.tolist(), list_rows(decoded), strict=True))
    for place, (value, key) in enumerate(records):
        alone = decode(FIELDS, [value], [key], first_offset=FIRST_OFFSET + place)
        assert list_rows(alone) == ([found[place]] if place in found else [])


DECIMAL, VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
MARK = "__debezium_unavailable_value"
SCALES = st.sampled_from(["-1000", "-3", "0", "2", "76", "77", "1000", "1001", "x", "", None])
BASE64 = st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode()) | st.text(max_size=3)
SCALED = st.fixed_dictionaries(
    {}, optional={"scale": st.integers(-1100, 1100) | JSON, "value": BASE64 | JSON}
)
ITEMS = BASE64 | SCALED | st.floats() | st.integers() | st.none() | st.just(MARK)
COLUMN_VALUES = (
    ITEMS
    | st.lists(ITEMS, max_size=4)
    | st.dictionaries(st.just(MARK) | st.text(max_size=2), ITEMS, max_size=2)
)


@st.composite
def described_columns(draw: st.DrawFn) -> dict[str, Any]:
    leaf = draw(
        st.builds(lambda scale: column("bytes", DECIMAL, parameters={"scale": scale}), SCALES)
        | st.sampled_from([column("struct", VARIABLE), column("bytes"), column("string"), column("double")])
    )
    around = draw(st.sampled_from(["nothing", "array", "map"]))
    if around == "array":
        return column("array", items=leaf)
    return leaf if around == "nothing" else column("map", keys={"type": "string"}, values=leaf)


@given(
    st.lists(
        st.tuples(described_columns() | st.none(), COLUMN_VALUES, st.sampled_from("ud")),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["Decimal(38, 2)", "Decimal(76, 40)", "String", "Float64", "Int128", "UUID"]),
    st.sampled_from(["{}", "Nullable({})", "Array({})", "Map(String, {})"]),
)
@examples(60)
def test_any_value_of_any_column_is_a_row_or_a_rejection_and_costs_only_itself(records, leaf, around):
    fields = {"v": around.format(leaf)}
    values = [
        write(envelope(op, {"v": value}, {"v": value}), None if described is None else describe(described))
        for described, value, op in records
    ]
    decoded = decode(fields, values)
    places = [*decoded.taken.tolist(), *(one.index for one in decoded.rejected)]
    assert sorted(places) == list(range(len(values)))
    found = dict(zip(decoded.taken.tolist(), map(str, list_rows(decoded)), strict=True))
    for place, value in enumerate(values):
        alone = [str(row) for row in list_rows(decode(fields, [value]))]
        assert alone == ([found[place]] if place in found else [])


def list_rows(decoded: Decoded) -> list[dict[str, Any]]:
    """Texts as their bytes: a key may have any, and `_key` keeps them."""
    rows = pa.Table.from_batches([decoded.rows])
    texts = {
        name: pa.binary() for name in rows.column_names if pa.types.is_string(rows.schema.field(name).type)
    }
    schema = pa.schema([(field.name, texts.get(field.name, field.type)) for field in rows.schema])
    return rows.cast(schema).to_pylist()
