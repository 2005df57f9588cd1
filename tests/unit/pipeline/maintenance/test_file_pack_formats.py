"""Packs take Arrow and Parquet files together, as a ledger holds them that 0.1.0 began."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncehouse.column_types.parser import parse_type
from oncehouse.errors import CorruptFileError
from oncehouse.ledger.catalog.packs import PackBundle
from oncehouse.ledger.models import DuplicateFile, FileRef, KeyFile, Part
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.deduplicate import DUPLICATE_SCHEMA
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.ingest.manifest import ChunkManifest, TableReadPlan
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.maintenance.file_packs import PackPlan, pack_task
from plan_examples import make_read_plan

FIELDS = {"id": parse_type("UInt64"), "marks": parse_type("Array(String)")}
TABLE = TableReadPlan(name="t", columns=(("id", "id"), ("marks", "marks")), id_column="_unique_id")


def make_block(first: int) -> pa.RecordBatch:
    numbers = range(first, first + 3)
    return pa.record_batch(
        {
            "source": pa.array([0] * 3, pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
            "timestamp": pa.array(numbers, pa.timestamp("us", tz="UTC")),
            "key": pa.nulls(3, pa.binary()),
            "value": pa.array(
                [b'{"id": %d, "marks": ["a", "b"]}' % number for number in numbers], pa.binary()
            ),
            "headers": pa.array([[{"key": "trace", "value": b"x"}], [], None], HEADERS),
        }
    )


def make_bundle(epoch: int, chunk: ChunkManifest) -> PackBundle:
    part = Part(
        part=f"part-{epoch}",
        epoch=epoch,
        table="t",
        key_file=f"keys-{epoch}",
        ordinal=0,
        rows=chunk.events,
        live_rows=chunk.events,
        size_bytes=0,
        file=chunk.parts[0].file,
    )
    key_file = KeyFile(
        key_file=f"keys-{epoch}", ordinal=0, events=chunk.events, keys=chunk.keys, raw=chunk.raw
    )
    return PackBundle(
        epoch=epoch, registered_at=0.0, key_files=(key_file,), parts=(part,), duplicate_files=()
    )


def test_a_pack_holds_the_rows_of_arrow_and_parquet_files(tmp_path):
    store = FileStore(str(tmp_path))
    bundles = []
    for epoch, is_parquet in enumerate((True, False, True, False), start=1):
        plan = make_read_plan(tmp_path, fields=FIELDS, tables=(TABLE,), epoch=epoch)
        (chunk,) = read_records(plan, f"r{epoch}", [make_block(epoch * 10)]).chunks
        bundles.append(make_bundle(epoch, rewrite_as_parquet(store, chunk) if is_parquet else chunk))
    before = [store_rows(store, bundle) for bundle in bundles]
    moved = {
        move.old: move.new
        for move in pack_task(PackPlan(files_root=str(tmp_path), out="packs/1", bundles=tuple(bundles)))
    }
    for bundle, (raw, part) in zip(bundles, before, strict=True):
        assert read_rows(store, moved[bundle.key_files[0].raw]).to_pylist() == raw
        assert read_rows(store, moved[bundle.parts[0].file]).to_pylist() == part


def rewrite_as_parquet(store: FileStore, chunk: ChunkManifest) -> ChunkManifest:
    """The same rows in the form in which 0.1.0 wrote them."""

    def rewrite(file: FileRef) -> FileRef:
        rows = read_rows(store, file)
        path = file.path.replace(".arrow", ".parquet")
        return store.put(path, lambda target: pq.write_table(rows, target, use_dictionary=False))

    (part,) = chunk.parts
    return replace(chunk, raw=rewrite(chunk.raw), parts=(replace(part, file=rewrite(part.file)),))


@pytest.mark.parametrize("kind", ["keys", "duplicates"])
def test_a_file_that_was_damaged_is_not_packed_as_if_it_were_sound(tmp_path, kind):
    store = FileStore(str(tmp_path))
    plan = make_read_plan(tmp_path, fields=FIELDS, tables=(TABLE,), epoch=1)
    (chunk,) = read_records(plan, "r1", [make_block(10)]).chunks
    bundle = make_bundle(1, chunk)
    batch = pa.record_batch([[0] * 500, range(500), [False] * 500], schema=DUPLICATE_SCHEMA)

    def write(path: str) -> None:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, DUPLICATE_SCHEMA) as writer:
            writer.write_batch(batch)

    duplicates = store.put("1.duplicates.arrow", write)
    bundle = replace(bundle, duplicate_files=(DuplicateFile(rows=500, file=duplicates),))
    damaged = chunk.keys if kind == "keys" else duplicates
    path = tmp_path / damaged.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=re.escape(damaged.path)):
        pack_task(PackPlan(files_root=str(tmp_path), out="packs/1", bundles=(bundle,)))


def store_rows(store: FileStore, bundle: PackBundle) -> tuple[list[object], list[object]]:
    return (
        read_rows(store, bundle.key_files[0].raw).to_pylist(),
        read_rows(store, bundle.parts[0].file).to_pylist(),
    )
