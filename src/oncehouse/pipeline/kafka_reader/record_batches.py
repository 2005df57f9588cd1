"""Kafka's record batches: which of them count, and their records as a batch of Arrow.

One answer of a broker holds whole batches of one partition, and perhaps a piece of the next one. Batches that a
producer aborted are left out as Kafka's own client does it: by the list of aborted transactions in the answer.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from oncehouse.errors import PermanentError
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.kafka_reader.compression import DecompressionBuffer
from oncehouse.pipeline.kafka_reader.record_parser import (
    KEY_AT,
    LEAST_RECORD_BYTES,
    VALUE_AT,
    Bits,
    Bytes,
    Int32,
    Int64,
    gather_spans,
    parse_records,
)

_HEADER = struct.Struct(">qiibIhiqqqhii")
# Behind the length come the leader epoch, the format and the checksum; the checksum is of all that follows it.
_LENGTH_AT, _FORMAT_AT, _CHECKED_AT, _RECORDS_AT = 12, 16, 21, _HEADER.size
_FORMAT = 2
_CODEC, _IS_APPENDED, _IS_TRANSACTIONAL, _IS_CONTROL = 7, 8, 16, 32
_ABORT_KEY = struct.Struct(">hh")
_MOST_BYTES = (1 << 31) - 1
_Item = TypeVar("_Item", bound=np.generic)
_BLOCK_BYTES = 32 << 20
"""Batches are unpacked together up to about this many bytes."""


@dataclass(frozen=True, slots=True)
class KafkaBatch:
    start: int
    """Of its records, in the answer."""
    stop: int
    base_offset: int
    last_offset: int
    count: int
    attributes: int
    base_time: int
    max_time: int
    producer: int

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _IS_CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _IS_TRANSACTIONAL)


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """All of the producer from this offset up to the control batch that says so."""

    producer: int
    first_offset: int


def list_batches(answer: memoryview, end: int) -> list[KafkaBatch]:
    """The whole batches of an answer up to the offset `end`; raises PermanentError."""
    found: list[KafkaBatch] = []
    at, size = 0, len(answer)
    while size - at > _FORMAT_AT:
        # Formats 0 and 1 have theirs at the same place.
        if answer[at + _FORMAT_AT] != _FORMAT:
            raise PermanentError(
                f"the records at offset {struct.unpack_from('>q', answer, at)[0]} are in Kafka's message format "
                f"{answer[at + _FORMAT_AT]}, which brokers before 0.11 wrote. Set source.kafka.reader to connector."
            )
        if size - at < _RECORDS_AT:
            break
        (base, length, _, _, checksum, attributes, delta, base_time, max_time, producer, _, _, count) = (
            _HEADER.unpack_from(answer, at)
        )
        if length < _RECORDS_AT - _LENGTH_AT or delta < 0 or count < 0:
            raise PermanentError(f"the batch at offset {base} has a header that cannot be")
        if length > size - at - _LENGTH_AT:
            break
        stop = at + _LENGTH_AT + length
        if crc32c(answer[at + _CHECKED_AT : stop]) != checksum:
            raise PermanentError(f"the batch at offset {base} does not match its checksum")
        start = at + _RECORDS_AT
        found.append(
            KafkaBatch(start, stop, base, base + delta, count, attributes, base_time, max_time, producer)
        )
        at = stop
        if base + delta + 1 >= end:
            break
    return found


def keep_committed(
    answer: memoryview, batches: Sequence[KafkaBatch], aborted: Collection[AbortedTransaction]
) -> list[KafkaBatch]:
    """Without control batches and without those of aborted transactions."""
    waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
    open_producers: set[int] = set()
    kept = []
    for batch in batches:
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            open_producers.add(waiting.pop().producer)
        if batch.is_control:
            if batch.count and _is_abort(answer[batch.start : batch.stop]):
                open_producers.discard(batch.producer)
        elif not (batch.is_transactional and batch.producer in open_producers):
            kept.append(batch)
    return kept


def _is_abort(record: memoryview) -> bool:
    """Whether the one record of a control batch ends a transaction by undoing it."""
    try:
        at = 0
        for _ in range(5):  # length, attributes, time, offset, length of the key
            while record[at] & 128:
                at += 1
            at += 1
        version, kind = _ABORT_KEY.unpack_from(record, at)
    except (IndexError, struct.error):
        raise PermanentError("a control batch has no record that says what it is") from None
    return bool(version >= 0 and kind == 0)


def read_batches(
    answer: memoryview, batches: Sequence[KafkaBatch], first: int, end: int, *, headers: bool
) -> Iterator[pa.RecordBatch]:
    """Their records from `first` up to `end`: (offset, timestamp, key, value), with headers where asked."""
    buffer = DecompressionBuffer()
    held: list[tuple[int, int, KafkaBatch]] = []
    for batch in batches:
        if batch.last_offset < first or batch.base_offset >= end:
            continue
        # Compaction leaves the header of a batch without records.
        if not batch.count and batch.start == batch.stop:
            continue
        start, size = _unpack(buffer, answer, batch)
        held.append((start, size, batch))
        if buffer.used >= _BLOCK_BYTES:
            yield from _parse(buffer, held, first, end, headers=headers)
            buffer, held = DecompressionBuffer(), []
    yield from _parse(buffer, held, first, end, headers=headers)


def _unpack(buffer: DecompressionBuffer, answer: memoryview, batch: KafkaBatch) -> tuple[int, int]:
    start, size = buffer.add(answer[batch.start : batch.stop], batch.attributes & _CODEC, batch.base_offset)
    if batch.count > size // LEAST_RECORD_BYTES:
        raise PermanentError(
            f"the batch at offset {batch.base_offset} has {size} bytes for {batch.count} records"
        )
    return start, size


def _parse(
    buffer: DecompressionBuffer,
    held: Sequence[tuple[int, int, KafkaBatch]],
    first: int,
    end: int,
    *,
    headers: bool,
) -> Iterator[pa.RecordBatch]:
    if not held:
        return
    if buffer.used > _MOST_BYTES:
        raise PermanentError(
            f"the batch at offset {held[-1][2].base_offset} has {buffer.used} bytes, more than a column can hold"
        )
    table = np.array(
        [
            (
                start,
                size,
                one.count,
                one.base_offset,
                one.base_time,
                one.max_time,
                one.attributes & _IS_APPENDED,
            )
            for start, size, one in held
        ],
        dtype=np.int64,
    )
    count, size = int(table[:, 2].sum()), buffer.used
    offsets, times = _allocate(count, np.int64), _allocate(count, np.int64)
    key_ends, value_ends = _allocate(count + 1, np.int32), _allocate(count + 1, np.int32)
    has_key, has_value = _allocate(count, np.bool_), _allocate(count, np.bool_)
    keys, values = _allocate(size, np.uint8), _allocate(size, np.uint8)
    header_ends = _allocate(count + 1 if headers else 1, np.int32)
    # A header has two lengths, so at least two bytes.
    spans = np.empty((size // 2 + 1 if headers else 0, 4), dtype=np.int64)
    rows, found, bad = parse_records(
        buffer.data, table, first, end, offsets, times, key_ends, keys, has_key, value_ends, values, has_value,
        header_ends, spans, headers,
    )  # fmt: skip
    if bad >= 0:
        raise PermanentError(
            f"the batch at offset {held[bad][2].base_offset} holds bytes that are no records"
        )
    if not rows:
        return
    columns = {
        "offset": pa.array(offsets[:rows]),
        "timestamp": pa.array(times[:rows]).cast(pa.timestamp("us", tz="UTC")),
        "key": _make_binary(key_ends, keys, has_key, rows),
        "value": _make_binary(value_ends, values, has_value, rows),
    }
    if headers:
        columns["headers"] = _make_headers(buffer.data, spans, found, header_ends, rows)
    yield pa.record_batch(columns)


def _allocate(count: int, kind: type[_Item]) -> npt.NDArray[_Item]:
    """Memory that Arrow may keep: it comes from its own pool."""
    width = np.dtype(kind).itemsize
    return np.frombuffer(pa.allocate_buffer(max(count, 1) * width), dtype=kind)


def _make_binary(ends: Int32, data: Bytes, has: Bits, rows: int) -> pa.Array:
    buffers = [_make_validity(has[:rows]), pa.py_buffer(ends[: rows + 1]), pa.py_buffer(data[: ends[rows]])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _make_validity(has: Bits) -> pa.Buffer | None:
    return None if has.all() else pa.py_buffer(np.packbits(has, bitorder="little"))


def _make_headers(data: Bytes, spans: Int64, count: int, ends: Int32, rows: int) -> pa.Array:
    """A record without headers has null, as from Spark's source."""
    size = len(data)
    parts = []
    for at_column in (KEY_AT, VALUE_AT):
        part_ends, has = _allocate(count + 1, np.int32), _allocate(count, np.bool_)
        gathered = _allocate(size, np.uint8)
        gather_spans(data, spans, at_column, count, part_ends, has, gathered)
        parts.append(_make_binary(part_ends, gathered, has, count))
    items = pa.StructArray.from_arrays([_as_text(parts[0]), parts[1]], fields=list(HEADERS.value_type))
    has_some = np.diff(ends[: rows + 1]) > 0
    return pa.Array.from_buffers(
        HEADERS, rows, [_make_validity(has_some), pa.py_buffer(ends[: rows + 1])], children=[items]
    )


def _as_text(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: as Java reads it, with a mark in the place of what is none
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
