"""Record batches of Kafka's format 2, written and read byte by byte: slow, and plain to see through."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

Header = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Record:
    offset: int
    time: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()


def encode_varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    rest &= (1 << 64) - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def encode_record(record: Record, base_offset: int, base_time: int) -> bytes:
    body = (
        b"\0"
        + encode_varint(record.time - base_time)
        + encode_varint(record.offset - base_offset)
        + _sized(record.key)
        + _sized(record.value)
        + encode_varint(len(record.headers))
        + b"".join(_sized(key) + _sized(value) for key, value in record.headers)
    )
    return encode_varint(len(body)) + body


def encode_batch(
    records: Sequence[Record],
    *,
    attributes: int = 0,
    producer: int = -1,
    payload: bytes | None = None,
    count: int | None = None,
    base_offset: int | None = None,
    last_offset: int | None = None,
) -> bytes:
    """`payload` and `count`: others than those of the records, as damage or compression leaves them."""
    base = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    first_time, last_time = records[0].time, max(record.time for record in records)
    if payload is None:
        payload = b"".join(encode_record(record, base, first_time) for record in records)
    checked = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last - base,
            first_time,
            last_time,
            producer,
            0,
            0,
            len(records) if count is None else count,
        )
        + payload
    )
    return struct.pack(">qiibI", base, len(checked) + 9, 0, 2, crc32c(checked)) + checked


def encode_abort(offset: int, producer: int, *, commits: bool = False) -> bytes:
    """The control batch that ends a transaction."""
    key = struct.pack(">hh", 0, 1 if commits else 0)
    return encode_batch(
        [Record(offset, 0, key, struct.pack(">hi", 0, 0))], attributes=0x30, producer=producer
    )


class BrokenRecordsError(Exception):
    """Bytes that are no records."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            if self.at >= len(self.data) or shift > 63:
                raise BrokenRecordsError
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        value &= (1 << 64) - 1
        signed = (value >> 1) ^ -(value & 1)
        return (signed + (1 << 63)) % (1 << 64) - (1 << 63)

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise BrokenRecordsError
        self.at += size
        return self.data[self.at - size : self.at]

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def decode_records(payload: bytes, count: int, base_offset: int, base_time: int) -> Iterable[Record]:
    """Raises BrokenRecordsError where the bytes are not exactly so many records."""
    whole = _Reader(payload)
    found = []
    for _ in range(count):
        one = _Reader(whole.take(whole.varint()))
        one.take(1)
        time, offset = one.varint(), one.varint()
        key, value = one.sized(), one.sized()
        headers = []
        headers_count = one.varint()
        if headers_count < 0 or headers_count > len(one.data) - one.at:
            raise BrokenRecordsError
        for _ in range(headers_count):
            header_key = one.sized()
            if header_key is None:
                raise BrokenRecordsError
            headers.append((header_key, one.sized()))
        if one.at != len(one.data):
            raise BrokenRecordsError
        found.append(Record(base_offset + offset, base_time + time, key, value, tuple(headers)))
    if whole.at != len(payload):
        raise BrokenRecordsError
    return found
