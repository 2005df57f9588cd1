"""Reading: what a task writes down for the records it was given, whatever they are."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.errors import CorruptFileError
from oncehouse.ledger.models import DeadLetterKind, Schema
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.identity_rule import Rule
from oncehouse.pipeline.dedup.unique_id import unique_ids
from oncehouse.pipeline.formats.base import EVENT_COLUMN, WaitingRecord
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.ingest.manifest import ReadPlan, TableReadPlan, TaskManifest
from oncehouse.pipeline.ingest.part_files import (
    PARTITIONS,
    RAW_SCHEMA,
    epoch_path,
    raw_columns,
    read_rows,
    write_blocks,
)
from oncehouse.pipeline.ingest.read_task import read_records
from plan_examples import make_read_plan

FIELDS = {"id": parse_type("UInt64"), "kind": parse_type("LowCardinality(String)")}
ALL = TableReadPlan(name="all", columns=(("id", "id"), ("kind", "kind")), id_column="_unique_id")
BUYS = TableReadPlan(
    name="buys", columns=(("number", "id"),), id_column=None, route_field="kind", route_values=("buy",)
)

Record = tuple[int, int, bytes | None]


def make_plan(root: str, *tables: TableReadPlan, **changes) -> ReadPlan:
    values = {
        "epoch": 3,
        "token": 2,
        "topics": ("clicks", "orders"),
        "fields": FIELDS,
        "tables": tables or (ALL,),
    }
    return make_read_plan(root, **(values | changes))


def make_blocks(records: list[Record], size: int = 1000) -> list[pa.RecordBatch]:
    blocks = []
    for at in range(0, len(records), size):
        source, offset, value = zip(*records[at : at + size], strict=True)
        blocks.append(
            pa.record_batch(
                [
                    pa.array(source, pa.int32()),
                    pa.array(offset, pa.int64()),
                    pa.array(offset, pa.timestamp("us", tz="UTC")),
                    pa.array([b"key"] * len(source), pa.binary()),
                    pa.array(value, pa.binary()),
                ],
                names=["source", "offset", "timestamp", "key", "value"],
            )
        )
    return blocks


def encode(number: int, kind: str = "view") -> bytes:
    return f'{{"id": {number}, "kind": "{kind}"}}'.encode()


def part_rows(store: FileStore, manifest: TaskManifest, table: int, column: str) -> list[object]:
    found: list[object] = []
    for chunk in manifest.chunks:
        for part in chunk.parts:
            if part.table == table:
                found += read_rows(store, part.file).column(column).to_pylist()
    return found


def test_rows_keep_the_order_of_kafka_and_know_their_event(tmp_path):
    plan = make_plan(str(tmp_path))
    records = [(0, offset, encode(offset * 7 % 11)) for offset in range(11)]
    manifest = read_records(plan, "r1", make_blocks(records, size=4))
    store = FileStore(str(tmp_path))
    assert part_rows(store, manifest, 0, "id") == [offset * 7 % 11 for offset in range(11)]
    assert part_rows(store, manifest, 0, EVENT_COLUMN) == list(range(11))


def test_key_files_are_sorted_and_lead_back_to_their_rows(tmp_path):
    store = FileStore(str(tmp_path))
    records = [(0, offset, encode(offset % 5)) for offset in range(20)]
    chunk = read_records(make_plan(str(tmp_path)), "r1", make_blocks(records)).chunks[0]
    keys = key_index.open_keys(store.local(chunk.keys))
    found = list(zip(keys.hi.tolist(), keys.lo.tolist(), keys.event.tolist(), strict=True))
    assert found == sorted(found)
    rows = read_rows(store, chunk.parts[0].file)
    hi, lo = unique_ids(Rule(fields=(("id",),)), rows.select(["id"]).combine_chunks().to_batches()[0])
    assert np.array_equal(hi[keys.event], keys.hi)
    assert np.array_equal(lo[keys.event], keys.lo)
    written = rows.column("_unique_id").to_pylist()
    assert written[0] == int(hi[0]).to_bytes(8, "big") + int(lo[0]).to_bytes(8, "big")


def test_raw_bytes_are_kept_with_their_position(tmp_path):
    store = FileStore(str(tmp_path))
    records = [(PARTITIONS + 2, 40, encode(1)), (PARTITIONS + 2, 41, None), (PARTITIONS + 2, 45, encode(2))]
    manifest = read_records(make_plan(str(tmp_path)), "r1", make_blocks(records))
    rows = read_rows(store, manifest.chunks[0].raw).to_pylist()
    assert [(row["topic"], row["partition"], row["offset"], row["value"]) for row in rows] == [
        ("orders", 2, 40, encode(1)),
        ("orders", 2, 45, encode(2)),
    ]
    assert (manifest.read, manifest.skipped) == (3, 1)


@pytest.mark.parametrize("columns", [None, ["id"]])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.999])
def test_a_changed_byte_of_a_part_is_noticed_wherever_it_is(tmp_path, place, columns):
    store = FileStore(str(tmp_path))
    records = [(0, offset, encode(offset)) for offset in range(100)]
    (chunk,) = read_records(make_plan(str(tmp_path)), "r1", make_blocks(records)).chunks
    path = store.local(chunk.parts[0].file)
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="repair --plan"):
        read_rows(store, chunk.parts[0].file, columns)


def test_a_part_that_0_1_0_wrote_as_parquet_is_read(tmp_path):
    store = FileStore(str(tmp_path))
    rows = pa.table({"id": range(9), "kind": ["view"] * 9})
    part = store.put("shop/r1.0.part.parquet", lambda path: pq.write_table(rows, path, row_group_size=4))
    assert read_rows(store, part).column("id").to_pylist() == list(range(9))
    found = read_rows(store, replace(part, row=3, rows=3), ["kind", "id"])
    assert found.to_pydict() == {"kind": ["view"] * 3, "id": [3, 4, 5]}


def test_some_columns_of_a_range_come_as_they_were_asked_for(tmp_path):
    store = FileStore(str(tmp_path))
    records = [(0, offset, encode(offset)) for offset in range(9)]
    (chunk,) = read_records(make_plan(str(tmp_path)), "r1", make_blocks(records, size=4)).chunks
    found = read_rows(store, replace(chunk.parts[0].file, row=3, rows=3), ["kind", "id"])
    assert found.to_pydict() == {"kind": ["view"] * 3, "id": [3, 4, 5]}


def test_raw_bytes_of_blocks_with_different_topics_stand_in_one_file(tmp_path):
    store = FileStore(str(tmp_path))
    blocks = [
        pa.Table.from_arrays(raw_columns(topics, JsonFormat().unfold(block), None), schema=RAW_SCHEMA)
        for topics, block in zip(
            (("a",), ("b", "a")), make_blocks([(0, 1, b"x"), (0, 2, b"y")], size=1), strict=True
        )
    ]
    file = store.put("shop/1.raw.arrow", lambda path: write_blocks(path, blocks))
    assert read_rows(store, file).column("topic").to_pylist() == ["a", "b"]


def test_a_chunk_ends_where_another_partition_begins(tmp_path):
    records = [(0, 1, encode(1)), (0, 2, encode(2)), (1, 0, encode(3))]
    manifest = read_records(make_plan(str(tmp_path)), "r1", make_blocks(records, size=1))
    assert [(chunk.first, chunk.events) for chunk in manifest.chunks] == [((0, 1), 2), ((1, 0), 1)]


def test_a_small_epoch_is_sorted_into_one_chunk(tmp_path):
    store = FileStore(str(tmp_path))
    records = [(1, 5, encode(4)), (0, 8, encode(2)), (1, 4, encode(3)), (0, 7, encode(1))]
    manifest = read_records(make_plan(str(tmp_path), whole=True), "r1", make_blocks(records, size=2))
    assert [chunk.events for chunk in manifest.chunks] == [4]
    assert part_rows(store, manifest, 0, "id") == [1, 2, 3, 4]


@pytest.mark.parametrize("cap", [{"part_rows": 10}, {"part_bytes": 200}])
def test_a_chunk_rolls_over_at_its_cap(tmp_path, cap):
    records = [(0, offset, encode(offset)) for offset in range(40)]
    manifest = read_records(make_plan(str(tmp_path), **cap), "r1", make_blocks(records, size=10))
    assert [chunk.events for chunk in manifest.chunks] == [10, 10, 10, 10]
    assert [chunk.first for chunk in manifest.chunks] == [(0, 0), (0, 10), (0, 20), (0, 30)]


def test_each_table_gets_its_rows_and_the_key_file_says_which(tmp_path):
    store = FileStore(str(tmp_path))
    plan = make_plan(str(tmp_path), ALL, BUYS)
    records = [(0, offset, encode(offset, "buy" if offset % 3 == 0 else "view")) for offset in range(9)]
    manifest = read_records(plan, "r1", make_blocks(records))
    assert part_rows(store, manifest, 0, "id") == list(range(9))
    assert part_rows(store, manifest, 1, "number") == [0, 3, 6]
    assert part_rows(store, manifest, 1, EVENT_COLUMN) == [0, 3, 6]
    keys = key_index.open_keys(store.local(manifest.chunks[0].keys))
    assert {int(event): int(bits) for event, bits in zip(keys.event, keys.routes, strict=True)} == {
        event: 0b11 if event % 3 == 0 else 0b01 for event in range(9)
    }


def test_an_event_that_no_table_takes_is_skipped(tmp_path):
    records = [(0, 0, encode(1, "buy")), (0, 1, encode(2, "view")), (0, 2, encode(3, "none"))]
    manifest = read_records(make_plan(str(tmp_path), BUYS), "r1", make_blocks(records))
    assert (manifest.read, manifest.skipped, manifest.chunks[0].events) == (3, 2, 1)


def test_no_records_write_nothing(tmp_path):
    manifest = read_records(make_plan(str(tmp_path), whole=True), "r1", [])
    assert manifest == TaskManifest(read=0, skipped=0, chunks=(), letters=())


def test_names_carry_epoch_token_and_attempt():
    assert epoch_path("shop", 12_345, 7, "r1-0.keys.arrow") == "shop/0000012/0000012345-7-r1-0.keys.arrow"


class Versioned(JsonFormat):
    """JSON behind a version and a colon."""

    def make_decoder(self, fields, schemas, limits):
        inner = super().make_decoder(fields, schemas, limits)
        known = {schema.schema for schema in schemas}

        class Decoder:
            def decode(self, block):
                pairs = [value.split(b":", 1) for value in block.column("value").to_pylist()]
                places = [place for place, (version, _) in enumerate(pairs) if version.decode() in known]
                bodies = pa.record_batch([pa.array([pairs[place][1] for place in places])], ["value"])
                decoded = inner.decode(bodies)
                return replace(
                    decoded,
                    taken=np.array(places)[decoded.taken],
                    waiting=tuple(
                        WaitingRecord(index=place, schema=version.decode())
                        for place, (version, _) in enumerate(pairs)
                        if version.decode() not in known
                    ),
                    schemas=pa.array([pairs[place][0].decode() for place in places]),
                )

        return Decoder()


def test_records_of_an_unknown_schema_wait_with_their_bytes_and_the_others_say_their_own(tmp_path):
    values = [b"1:" + encode(1, "buy"), b"4:" + encode(2, "buy"), b"2:" + encode(3, "buy")]
    schemas = tuple(Schema(schema=name, format="test", definition="") for name in ("1", "2"))
    plan = make_plan(str(tmp_path), format=Versioned(), schemas=schemas)
    manifest = read_records(
        plan, "r1", make_blocks([(0, place, value) for place, value in enumerate(values)])
    )
    store = FileStore(str(tmp_path))
    raw = read_rows(store, manifest.chunks[0].raw).select(["offset", "value", "schema"]).to_pylist()
    assert raw == [
        {"offset": 0, "value": values[0], "schema": "1"},
        {"offset": 2, "value": values[2], "schema": "2"},
    ]
    (letters,) = manifest.letters
    assert (letters.kind, letters.reasons) == (DeadLetterKind.WAITING, {"4": 1})
    (waiting,) = read_rows(store, letters.file).to_pylist()
    assert (waiting["offset"], waiting["value"], waiting["schema"]) == (1, values[1], "4")
    assert manifest.read == 3


values = st.one_of(
    st.none(),
    st.sampled_from([b"", b"{", b"[]", b'{"id": -1, "kind": "a"}', b'{"kind": "buy"}', b"\xff"]),
    st.builds(encode, st.integers(0, 9), st.sampled_from(["buy", "view"])),
)


@settings(deadline=None, max_examples=40)
@given(
    sent=st.lists(st.tuples(st.integers(0, 2), values), max_size=40),
    whole=st.booleans(),
    tables=st.sampled_from([(ALL,), (BUYS,), (ALL, BUYS)]),
    part_limit=st.integers(1, 15),
    block=st.integers(1, 20),
)
def test_every_record_is_counted_exactly_once(sent, whole, tables, part_limit, block):
    with tempfile.TemporaryDirectory() as root:
        records = [
            (source, offset, value) for offset, (source, value) in enumerate(sorted(sent, key=_source))
        ]
        plan = make_plan(root, *tables, whole=whole, part_rows=part_limit)
        manifest = read_records(plan, "r1", make_blocks(records, size=block))
        kept = sum(chunk.events for chunk in manifest.chunks)
        letters = sum(letters.rows for letters in manifest.letters)
        assert manifest.read == len(records) == kept + manifest.skipped + letters
        assert [chunk.first for chunk in manifest.chunks] == sorted(chunk.first for chunk in manifest.chunks)
        assert TaskManifest.from_json(manifest.to_json()) == manifest
        good = [
            value for _, _, value in records if value and value.startswith(b'{"id": ') and b"-1" not in value
        ]
        taken = [value for value in good if ALL in tables or b"buy" in value]
        assert kept == len(taken)


def _source(record: tuple[int, bytes | None]) -> int:
    return record[0]
