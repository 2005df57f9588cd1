"""Reading pieces of files in a task: rows of Parquet and CSV by their columns, lines of JSON as messages.

A row is known by its file's number and its place there: the row number, for JSON the position of its first byte.
So a batch that is read again gives the same records at the same positions. Memory holds a block at a time.
"""

from __future__ import annotations

import csv
import io
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyarrow import fs

from oncehouse.column_types.types import ColumnType, FixedString, String, bare, is_nullable
from oncehouse.common.formatting import format_bytes
from oncehouse.common.redaction import hide_credentials
from oncehouse.config.problems import printable
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.ledger.catalog.imports import ImportFile, Piece
from oncehouse.ledger.models import FileFormat
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.external.dataframe_rows import FrameRows
from oncehouse.pipeline.external.import_manifest import open_place, require_same
from oncehouse.pipeline.formats.dataframe import schema_of
from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.ingest.read_task import ReadTask

_BLOCK_ROWS = 50_000
_BLOCK_BYTES = 8 << 20
_LONGEST_LINE_BYTES = 64 << 20
# Lines of CSV that are no rows stand behind all rows of their file.
_NO_ROWS_FROM = 1 << 40


@dataclass(frozen=True, kw_only=True)
class ImportPlan:
    read: ReadPlan
    place: str
    format: FileFormat
    files: tuple[ImportFile, ...]
    """Those that the pieces name."""
    pieces: tuple[Piece, ...]
    mark_json: bool
    """Whether lines are marked as JSON, because the pipeline's own messages are something else."""


def import_task(plan: ImportPlan) -> TaskManifest:
    filesystem, _ = open_place(plan.place)
    rows = FrameRows(plan.read.fields)
    decoder = None if plan.format is FileFormat.JSON else rows
    task = ReadTask(plan.read, f"i{uuid.uuid4().hex[:12]}", ordered=True, decoder=decoder)
    reader = _FileReader(plan, filesystem, task, rows)
    files = {file.number: file for file in plan.files}
    for piece in plan.pieces:
        file = files[piece.number]
        try:
            _require_same(filesystem, file)
            reader.read(file, piece)
            # Looked at again: a file may be replaced while it is read.
            _require_same(filesystem, file)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigurationError(
                f"{hide_credentials(file.path)} cannot be read as {plan.format} ({str(error).splitlines()[0]}). "
                "Nothing of its batch was settled: mend the file and import the folder under another --name."
            ) from error
        except OSError as error:
            raise TransientError(f"{hide_credentials(file.path)} cannot be read now ({error}).") from error
    return task.finish()


def _require_same(filesystem: fs.FileSystem, file: ImportFile) -> None:
    info = filesystem.get_file_info(file.path)
    require_same(file, info.size or 0, info.mtime_ns or 0)


class _FileReader:
    def __init__(self, plan: ImportPlan, filesystem: fs.FileSystem, task: ReadTask, rows: FrameRows) -> None:
        self._plan = plan
        self._filesystem = filesystem
        self._task = task
        self._rows = rows
        self._schema = schema_of(plan.read.fields).schema

    def read(self, file: ImportFile, piece: Piece) -> None:
        match self._plan.format:
            case FileFormat.PARQUET:
                self._read_parquet(file, piece)
            case FileFormat.CSV:
                self._read_csv(file)
            case FileFormat.JSON:
                self._read_json(file, piece)

    def _take(self, found: pa.RecordBatch, file: ImportFile, offset: int) -> int:
        if found.num_rows:
            at = file.modified_ns // 1000
            self._task.add(self._rows.make_block(found, source=file.number, offset=offset, timestamp_us=at))
        return offset + int(found.num_rows)

    def _read_parquet(self, file: ImportFile, piece: Piece) -> None:
        with self._filesystem.open_input_file(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            offset = sum(parquet.metadata.row_group(number).num_rows for number in range(piece.first))
            known = [name for name in parquet.schema_arrow.names if name in self._plan.read.fields]
            self._require_columns(file, known)
            for found in parquet.iter_batches(
                _BLOCK_ROWS, row_groups=range(piece.first, piece.last), columns=known, use_threads=False
            ):
                offset = self._take(found, file, offset)

    def _require_columns(self, file: ImportFile, names: Collection[str]) -> None:
        needed = self._plan.read.needed_columns
        lacking = [name for name in needed if name not in names]
        if lacking:
            raise ConfigurationError(
                f"{hide_credentials(file.path)} has no column {printable(lacking[0])}, which {needed[lacking[0]]}: "
                "different events would be taken for one. Nothing of its batch was settled: add the column, or list it "
                "under source.optional_fields."
            )

    def _read_csv(self, file: ImportFile) -> None:
        bad: list[tuple[int, bytes]] = []

        def skip_row(row: pa_csv.InvalidRow) -> str:
            bad.append((row.number or len(bad), row.text.encode("utf-8", "surrogateescape")))
            return "skip"

        header = _read_header(self._filesystem, file)
        fields = {name: type_ for name, type_ in self._plan.read.fields.items() if name in header}
        if not fields:
            raise ConfigurationError(
                f"{hide_credentials(file.path)}: its first line names no column that source.fields declares"
            )
        self._require_columns(file, header)
        with (
            self._filesystem.open_input_stream(file.path, compression="detect") as opened,
            pa_csv.open_csv(
                opened,
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip_row),
                convert_options=_as_texts(fields),
            ) as blocks,
        ):
            offset = 0
            for block in blocks:
                found = pa.RecordBatch.from_arrays(
                    [_fill(block.column(name), type_) for name, type_ in fields.items()], names=list(fields)
                )
                offset = self._take(found, file, offset)
        self._reject(file, bad)

    def _reject(self, file: ImportFile, bad: list[tuple[int, bytes]]) -> None:
        if not bad:
            return
        lines = pa.array([text for _, text in bad], pa.binary())
        block = self._block(file, np.array([_NO_ROWS_FROM + number for number, _ in bad]), lines, marked=True)
        problem = RejectionCause(
            reason=Reason.WRONG_TYPE, detail="the line has another number of columns than the first"
        )
        self._rows.reject_all(len(bad), problem)
        self._task.add(block)

    def _read_json(self, file: ImportFile, piece: Piece) -> None:
        for offsets, lines in read_lines(self._filesystem, file, piece):
            for start in range(0, len(lines), _BLOCK_ROWS):
                some = lines.slice(start, _BLOCK_ROWS)
                block = self._block(
                    file, offsets[start : start + len(some)], some, marked=self._plan.mark_json
                )
                self._task.add(block)

    def _block(
        self,
        file: ImportFile,
        offsets: np.ndarray[tuple[int], np.dtype[np.int64]],
        lines: pa.Array,
        *,
        marked: bool,
    ) -> pa.RecordBatch:
        rows = len(lines)
        columns = {
            "source": pa.array(np.full(rows, file.number, dtype=np.int64)),
            "offset": pa.array(offsets, pa.int64()),
            "row": pa.array(np.zeros(rows, dtype=np.int32)),
            "timestamp": pa.repeat(pa.scalar(file.modified_ns // 1000, pa.timestamp("us", tz="UTC")), rows),
            "key": pa.nulls(rows, pa.binary()),
            "value": lines,
        }
        if marked:
            columns["schema"] = pa.repeat(pa.scalar(self._schema), rows)
        return pa.record_batch(columns)


def _read_header(filesystem: fs.FileSystem, file: ImportFile) -> list[str]:
    with filesystem.open_input_stream(file.path, compression="detect") as opened:
        start = opened.read(1 << 20).decode("utf-8-sig", "replace")
    return next(csv.reader(io.StringIO(start, newline="")), [])


def _as_texts(fields: Mapping[str, ColumnType]) -> pa_csv.ConvertOptions:
    """Texts are fitted like any other column; an empty cell is null, an empty text between quotes is a text."""
    return pa_csv.ConvertOptions(
        column_types=dict.fromkeys(fields, pa.string()),
        include_columns=list(fields),
        check_utf8=False,
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )


def _fill(column: pa.Array, type_: ColumnType) -> pa.Array:
    """An empty cell is an empty text where the field takes no null."""
    texts = isinstance(bare(type_), String | FixedString) and not is_nullable(type_)
    return pc.fill_null(column, "") if texts else column


def read_lines(
    filesystem: fs.FileSystem, file: ImportFile, piece: Piece
) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], pa.Array]]:
    """(position of the first byte, line) of the lines that begin in the piece; blank ones are left out."""
    with _open_at(filesystem, file, piece) as opened:
        # The byte before shows whether a line begins here; a line that does not belongs to another piece.
        at = max(piece.first - 1, 0)
        held = b""
        skipping = piece.first > 0
        # Compressed, a file is one piece and ends where its stream does.
        limit = piece.last if piece.first or piece.last != file.size_bytes else None
        while True:
            more = opened.read(_BLOCK_BYTES)
            data = held + more
            end = data.rfind(b"\n") + 1 if more else len(data)
            if not end and len(data) > _LONGEST_LINE_BYTES and not skipping:
                raise _endless(file, at)
            if skipping:
                found = data.find(b"\n") + 1
                if not found and more:
                    at, held = at + len(data), b""
                    continue
                if not found:
                    return
                data, at, end, skipping = data[found:], at + found, max(end - found, 0), False
            if limit is not None and at >= limit:
                return
            yield _split(data[:end], at, limit)
            if not more:
                return
            at, held = at + end, data[end:]


def _endless(file: ImportFile, at: int) -> ConfigurationError:
    return ConfigurationError(
        f"{hide_credentials(file.path)}: the line that begins at byte {at} is longer than "
        f"{format_bytes(_LONGEST_LINE_BYTES)}. A JSON file is read line by line, one object a line; write it so (a "
        "list without line ends is no such file), and import it under another --name."
    )


def _open_at(filesystem: fs.FileSystem, file: ImportFile, piece: Piece) -> pa.NativeFile:
    if piece.first == 0:
        return filesystem.open_input_stream(file.path, compression="detect")
    opened = filesystem.open_input_file(file.path)
    opened.seek(piece.first - 1)
    return opened


def _split(
    data: bytes, at: int, limit: int | None
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], pa.Array]:
    found = pc.split_pattern(pa.array([data], pa.large_binary()), b"\n")
    lines = found.values
    lengths = pc.binary_length(lines).to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]]) + at
    if b"\r" in data:
        lines = pc.if_else(pc.ends_with(lines, b"\r"), pc.binary_slice(lines, 0, -1), lines)
    wanted = pc.binary_length(lines).to_numpy(zero_copy_only=False) > 0
    if limit is not None:
        wanted &= starts < limit
    return starts[wanted], lines.filter(pa.array(wanted)).cast(pa.binary())
