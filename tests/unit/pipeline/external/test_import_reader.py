"""Files of an import: which count, how they are cut, and that no line is read twice or not at all."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.imports import ImportFile, Piece
from oncehouse.ledger.models import FileFormat
from oncehouse.pipeline.external import import_reader
from oncehouse.pipeline.external.import_manifest import (
    find_new,
    list_files,
    plan_batches,
    plan_pieces,
    share_out,
)
from oncehouse.pipeline.external.import_reader import read_lines


def piece(size_bytes: int, **changes) -> Piece:
    return replace(Piece(batch=0, piece=0, number=0, first=0, last=1, size_bytes=size_bytes), **changes)


def test_only_files_of_the_format_count_by_path_and_hidden_ones_never(tmp_path):
    for name in ("b.json", "a.jsonl", "deep/c.ndjson.gz", "d.csv", "_SUCCESS", ".x.json", "_tmp/e.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    listing = list_files(str(tmp_path), FileFormat.JSON)
    names = [os.path.relpath(file.path, tmp_path) for file in listing.files]
    assert (names, listing.left_out) == (["a.jsonl", "b.json", "deep/c.ndjson.gz"], 1)
    assert [file.number for file in listing.files] == [0, 1, 2]
    assert len(list_files(str(tmp_path / "b.json"), FileFormat.JSON).files) == 1
    with pytest.raises(ConfigurationError, match="no such folder"):
        list_files(str(tmp_path / "nowhere"), FileFormat.JSON)


def test_new_files_are_numbered_on_and_changed_or_lost_ones_refused():
    pinned = [ImportFile(number=at, path=name, size_bytes=5, modified_ns=7) for at, name in enumerate("ab")]
    now = [ImportFile(number=at, path=name, size_bytes=5, modified_ns=7) for at, name in enumerate("0ac")]
    assert [(file.number, file.path) for file in find_new("x", now, pinned, {0})] == [(2, "0"), (3, "c")]
    with pytest.raises(ConfigurationError, match="b was to be imported and is gone"):
        find_new("x", now, pinned, {1})
    changed = [replace(now[1], size_bytes=6)]
    with pytest.raises(ConfigurationError, match=r"a has changed .*5 bytes then, 6 now.*--name"):
        find_new("x", changed, pinned, set())


def test_row_groups_are_pieces_and_pieces_are_batches_of_bounded_bytes(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(100))}), path, row_group_size=10)
    files = list_files(str(tmp_path), FileFormat.PARQUET).files
    pieces = list(plan_pieces(str(tmp_path), files, FileFormat.PARQUET, piece_bytes=1))
    assert [(found.first, found.last) for found in pieces] == [(at, at + 1) for at in range(10)]
    assert [(one.first, one.last) for one in plan_pieces(str(tmp_path), files, FileFormat.PARQUET)] == [
        (0, 10)
    ]
    (tmp_path / "b.parquet").write_bytes(b"no")
    with pytest.raises(ConfigurationError, match=r"b\.parquet is no Parquet file"):
        list(
            plan_pieces(
                str(tmp_path), list_files(str(tmp_path), FileFormat.PARQUET).files, FileFormat.PARQUET
            )
        )


def test_batches_hold_at_most_so_many_bytes_unless_one_piece_is_larger():
    sizes = [40, 40, 40, 200, 10]
    cut = list(plan_batches([piece(size) for size in sizes], first_batch=3, batch_bytes=100))
    assert [(one.batch, one.piece) for one in cut] == [(3, 0), (3, 1), (4, 0), (5, 0), (6, 0)]


def test_little_is_read_by_one_task_and_much_by_one_a_core():
    assert len(share_out([piece(10)] * 6, tasks=4, least_bytes=100)) == 1
    shares = share_out([piece(100)] * 10, tasks=4, least_bytes=100)
    assert [len(share) for share in shares] == [3, 2, 3, 2]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([b"", b"a", b"{}", b"long line of text", b"\r", b"x\r"]), max_size=12),
    st.booleans(),
    st.integers(1, 9),
    st.integers(2, 9),
)
def test_every_line_is_read_once_with_the_position_of_its_first_byte(
    tmp_path_factory, lines, ended, piece_bytes, block_bytes
):
    path = tmp_path_factory.mktemp("lines") / "a.json"
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    path.write_bytes(data)
    files = list_files(str(path), FileFormat.JSON).files
    expected, at = [], 0
    for line in data.split(b"\n"):
        if line.removesuffix(b"\r"):
            expected.append((at, line.removesuffix(b"\r")))
        at += len(line) + 1
    before, import_reader._BLOCK_BYTES = import_reader._BLOCK_BYTES, block_bytes
    try:
        found = [
            (int(offset), line)
            for one in plan_pieces(str(path), files, FileFormat.JSON, piece_bytes=piece_bytes)
            for offsets, texts in read_lines(fs.LocalFileSystem(), files[0], one)
            for offset, line in zip(offsets, texts.to_pylist(), strict=True)
        ]
    finally:
        import_reader._BLOCK_BYTES = before
    assert found == expected


def test_a_compressed_file_is_one_piece_and_read_to_its_end(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d\n" % number for number in range(5000))))
    files = list_files(str(tmp_path), FileFormat.JSON).files
    pieces = list(plan_pieces(str(tmp_path), files, FileFormat.JSON, piece_bytes=10))
    assert len(pieces) == 1
    lines = [
        line
        for _, texts in read_lines(fs.LocalFileSystem(), files[0], pieces[0])
        for line in texts.to_pylist()
    ]
    assert lines == [b"%d" % number for number in range(5000)]


def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(import_reader, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(import_reader, "_LONGEST_LINE_BYTES", 100)
    (tmp_path / "a.json").write_bytes(b"{}\n" + b"x" * 95 + b"\n" + b"[" + b"{}," * 1000)
    (file,) = list_files(str(tmp_path), FileFormat.JSON).files
    (piece,) = plan_pieces(str(tmp_path), [file], FileFormat.JSON)
    with pytest.raises(ConfigurationError, match="begins at byte 99 is longer"):
        list(read_lines(fs.LocalFileSystem(), file, piece))
