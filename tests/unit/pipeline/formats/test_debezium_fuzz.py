"""Whatever bytes: an envelope of Debezium is a row or a rejection, and costs only itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from debezium_examples import FIELDS, FIRST_OFFSET, MYSQL, POSTGRES, column, decode, describe, write
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
@settings(examples(40))
def test_any_bytes_are_a_row_or_a_rejection_and_cost_only_themselves(records):
    values, keys = (list(column) for column in zip(*records, strict=True))
    decoded = decode(FIELDS, values, keys)
    places = [*decoded.taken.tolist(), *(one.index for one in decoded.rejected), *decoded.skipped.tolist()]
    assert sorted(places) == list(range(len(values)))
    found = dict(zip(decoded.taken.tolist(), list_rows(decoded), strict=True))
    for place, (value, key) in enumerate(records):
        alone = decode(FIELDS, [value], [key], first_offset=FIRST_OFFSET + place)
        assert list_rows(alone) == ([found[place]] if place in found else [])


def list_rows(decoded: Decoded) -> list[dict[str, Any]]:
    """Texts as their bytes: a key may have any, and `_key` keeps them."""
    rows = pa.Table.from_batches([decoded.rows])
    texts = {
        name: pa.binary() for name in rows.column_names if pa.types.is_string(rows.schema.field(name).type)
    }
    schema = pa.schema([(field.name, texts.get(field.name, field.type)) for field in rows.schema])
    return rows.cast(schema).to_pylist()
