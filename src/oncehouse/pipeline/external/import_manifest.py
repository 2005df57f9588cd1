"""Files of an import: which there are, whether they are still the same, and how they are cut into batches.

Pure but for the look at the folder and at the footers of Parquet files. A batch is a list of pieces of about as
many bytes as asked for; a piece is some row groups of a Parquet file, a range of bytes of a JSON file, or a whole
file where it cannot be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from oncehouse.common.redaction import hide_credentials
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.imports import ImportFile, Piece
from oncehouse.ledger.models import FileFormat
from oncehouse.pipeline.ingest.part_files import PARTITIONS

# A piece is what one task reads at least; a batch holds several.
PIECE_BYTES = 32 << 20
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


_ENDINGS = {
    FileFormat.PARQUET: (".parquet", ".parq"),
    FileFormat.JSON: (".json", ".jsonl", ".ndjson"),
    FileFormat.CSV: (".csv",),
}


@dataclass(frozen=True, kw_only=True)
class Listing:
    files: tuple[ImportFile, ...]
    left_out: int
    """Files of other endings."""


def open_place(place: str) -> tuple[fs.FileSystem, str]:
    """A folder or file of this machine, or one behind an address such as s3://bucket/folder."""
    try:
        if "://" in place:
            filesystem, path = fs.FileSystem.from_uri(place)
            return filesystem, path
        return fs.LocalFileSystem(), str(Path(place).absolute())
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(place, error) from error


def list_files(place: str, format_: FileFormat) -> Listing:
    """What is there now, by path; names that begin with a dot or an underscore are not data."""
    filesystem, path = open_place(place)
    try:
        info = filesystem.get_file_info(path)
        found = (
            filesystem.get_file_info(fs.FileSelector(path, recursive=True))
            if info.type is fs.FileType.Directory
            else [info]
        )
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(place, error) from error
    if info.type is fs.FileType.NotFound:
        raise ConfigurationError(f"{hide_credentials(place)}: there is no such folder or file")
    data = [one for one in found if one.is_file and not _is_hidden(one.path, path)]
    chosen = sorted((one for one in data if _has_ending(one.path, format_)), key=lambda one: one.path)
    return Listing(
        files=tuple(
            ImportFile(number=number, path=one.path, size_bytes=one.size, modified_ns=one.mtime_ns or 0)
            for number, one in enumerate(chosen)
        ),
        left_out=len(data) - len(chosen),
    )


def _unreadable(place: str, error: Exception) -> ConfigurationError:
    text = str(error).splitlines()[0]
    return ConfigurationError(f"{hide_credentials(place)}: cannot be read ({text}); check address and rights")


def _is_hidden(path: str, root: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.removeprefix(root).split("/"))


def _has_ending(path: str, format_: FileFormat) -> bool:
    name = path.lower()
    if format_ is not FileFormat.PARQUET:
        for ending in _COMPRESSED:
            name = name.removesuffix(ending)
    return name.endswith(_ENDINGS[format_])


def find_new(
    place: str, now: Sequence[ImportFile], pinned: Sequence[ImportFile], unsettled: set[int]
) -> tuple[ImportFile, ...]:
    """Files that the import has not seen, numbered on from those it has; raises when one of those has changed."""
    known = {file.path: file for file in pinned}
    present = {file.path: file for file in now}
    for file in pinned:
        found = present.get(file.path)
        if found is None and file.number in unsettled:
            raise ConfigurationError(
                f"{hide_credentials(file.path)} was to be imported and is gone. Put it back, or import what is left of "
                f"{hide_credentials(place)} under another --name: rows that came already are found as duplicates."
            )
        if found is not None:
            require_same(file, found.size_bytes, found.modified_ns)
    fresh = [file for file in now if file.path not in known]
    if len(pinned) + len(fresh) > PARTITIONS:
        raise ConfigurationError(
            f"{hide_credentials(place)} holds more than {PARTITIONS} files; import its folders one by one"
        )
    return tuple(
        ImportFile(
            number=len(pinned) + number,
            path=file.path,
            size_bytes=file.size_bytes,
            modified_ns=file.modified_ns,
        )
        for number, file in enumerate(fresh)
    )


def require_same(pinned: ImportFile, size_bytes: int, modified_ns: int) -> None:
    if (size_bytes, modified_ns) != (pinned.size_bytes, pinned.modified_ns):
        raise ConfigurationError(
            f"{hide_credentials(pinned.path)} has changed since this import first saw it ({pinned.size_bytes} bytes "
            f"then, {size_bytes} now), so its batches could not be recognized again. Put the old file back, or "
            "import the folder under another --name: rows that came already are found as duplicates."
        )


def plan_pieces(
    place: str, files: Iterable[ImportFile], format_: FileFormat, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """The files cut, without batches yet."""
    filesystem, _ = open_place(place)
    for file in files:
        for first, last, size_bytes in _cut(filesystem, file, format_, piece_bytes):
            yield Piece(batch=0, piece=0, number=file.number, first=first, last=last, size_bytes=size_bytes)


def _cut(
    filesystem: fs.FileSystem, file: ImportFile, format_: FileFormat, piece_bytes: int
) -> Iterator[tuple[int, int, int]]:
    if format_ is FileFormat.PARQUET:
        yield from _cut_groups(filesystem, file, piece_bytes)
    elif format_ is FileFormat.JSON and not file.path.lower().endswith(_COMPRESSED):
        for first in range(0, file.size_bytes, piece_bytes):
            last = min(first + piece_bytes, file.size_bytes)
            yield first, last, last - first
    elif file.size_bytes:
        # A line break may stand between quotes, so a CSV file is read from its beginning.
        yield 0, file.size_bytes, file.size_bytes


def _cut_groups(
    filesystem: fs.FileSystem, file: ImportFile, piece_bytes: int
) -> Iterator[tuple[int, int, int]]:
    try:
        with filesystem.open_input_file(file.path) as opened:
            metadata = pq.read_metadata(opened)
            sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(
            f"{hide_credentials(file.path)} is no Parquet file that can be read ({str(error).splitlines()[0]}). "
            "Take it out of the folder, or replace it."
        ) from error
    first = size_bytes = 0
    for number, size in enumerate(sizes):
        size_bytes += size
        if size_bytes >= piece_bytes or number == len(sizes) - 1:
            yield first, number + 1, size_bytes
            first, size_bytes = number + 1, 0


def plan_batches(pieces: Iterable[Piece], *, first_batch: int, batch_bytes: int) -> Iterator[Piece]:
    """The pieces in batches of about so many bytes; one that is larger is a batch of its own."""
    batch, place, held = first_batch, 0, 0
    for piece in pieces:
        if held and held + piece.size_bytes > batch_bytes:
            batch, place, held = batch + 1, 0, 0
        yield Piece(
            batch=batch,
            piece=place,
            number=piece.number,
            first=piece.first,
            last=piece.last,
            size_bytes=piece.size_bytes,
        )
        place, held = place + 1, held + piece.size_bytes


def share_out(
    pieces: Sequence[Piece], *, tasks: int, least_bytes: int = PIECE_BYTES // 4
) -> list[tuple[Piece, ...]]:
    """Neighbouring pieces for each task: as many tasks as there are cores, fewer when there is little to read."""
    total = sum(piece.size_bytes for piece in pieces)
    wanted = max(1, min(tasks, total // least_bytes, len(pieces)))
    shares: list[list[Piece]] = [[]]
    held = 0
    for piece in pieces:
        if shares[-1] and held >= total * len(shares) / wanted and len(shares) < wanted:
            shares.append([])
        shares[-1].append(piece)
        held += piece.size_bytes
    return [tuple(share) for share in shares]
