"""Record batches into columns: as a slow reader has them, or refused; never past the end of any memory."""

from __future__ import annotations

import random

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from kafka_records import (
    BrokenRecordsError,
    Record,
    decode_records,
    encode_abort,
    encode_batch,
    encode_record,
)
from oncehouse.errors import PermanentError
from oncehouse.pipeline.kafka_reader import compression
from oncehouse.pipeline.kafka_reader.record_batches import (
    AbortedTransaction,
    keep_committed,
    list_batches,
    read_batches,
)

TIME = 1_700_000_000_000
NEVER = 1 << 62

texts = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=4).map(str.encode), texts), max_size=3).map(tuple)
records = st.lists(st.tuples(st.integers(-5, 10**6), texts, texts, headers), min_size=1, max_size=12).map(
    lambda found: [
        Record(100 + number, TIME + time, key, value, more)
        for number, (time, key, value, more) in enumerate(found)
    ]
)


def read(answer: bytes, first: int = 0, end: int = NEVER, aborted=(), *, with_headers: bool = True):
    """The records of an answer, as a broker sends it."""
    view = memoryview(answer)
    batches = keep_committed(view, list_batches(view, end), aborted)
    found = []
    for block in read_batches(view, batches, first, end, headers=with_headers):
        block.validate(full=True)
        for row in block.to_pylist():
            more = tuple((one["key"].encode(), one["value"]) for one in row.get("headers") or ())
            found.append(
                Record(
                    row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"], row["value"], more
                )
            )
    return found


@given(records, st.integers(95, 115), st.integers(95, 115))
def test_records_of_a_range_come_as_they_were_written(written, first, end):
    answer = encode_batch(written[:5]) + (encode_batch(written[5:]) if written[5:] else b"")
    assert read(answer, first, end) == [one for one in written if first <= one.offset < end]


@given(records, st.sampled_from([1, 3, 4]))
def test_compressed_batches_are_unpacked(written, codec):
    payload = b"".join(encode_record(one, 100, written[0].time) for one in written)
    pack = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}[codec].compress
    assert read(encode_batch(written, attributes=codec, payload=bytes(pack(payload)))) == written


@pytest.mark.parametrize("framed", [True, False])
def test_snappy_comes_with_javas_framing_and_without(framed):
    written = [Record(100 + number, TIME, None, bytes([number]) * 100) for number in range(20)]
    payload = b"".join(encode_record(one, 100, TIME) for one in written)
    if framed:
        blocks = [
            bytes(cramjam.snappy.compress_raw(payload[at : at + 500])) for at in range(0, len(payload), 500)
        ]
        packed = b"\x82SNAPPY\x00" + bytes([0, 0, 0, 1, 0, 0, 0, 1])
        packed += b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    else:
        packed = bytes(cramjam.snappy.compress_raw(payload))
    assert read(encode_batch(written, attributes=2, payload=packed)) == written


def test_a_batch_that_would_unpack_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(compression, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(compression, "_FIRST_BYTES", 1 << 10)
    for codec, pack in (
        (1, cramjam.gzip.compress),
        (4, cramjam.zstd.compress),
        (2, cramjam.snappy.compress_raw),
    ):
        packed = bytes(pack(bytes(64 << 20)))
        with pytest.raises(PermanentError, match="the batch at offset 100 cannot be decompressed"):
            read(encode_batch([Record(100, TIME)], attributes=codec, payload=packed))


def test_a_time_of_the_broker_stands_for_all_records_of_a_batch():
    written = [Record(100, TIME), Record(101, TIME + 5)]
    assert [one.time for one in read(encode_batch(written, attributes=8))] == [TIME + 5, TIME + 5]


def test_times_that_no_column_holds_are_the_first_and_the_last_that_it_does():
    answer = encode_batch([Record(100, (1 << 63) - 1), Record(101, -(1 << 62))])
    view = memoryview(answer)
    (block,) = read_batches(view, list_batches(view, NEVER), 0, NEVER, headers=False)
    late, early = block.column("timestamp").cast(pa.int64()).to_pylist()
    assert late == 9_223_372_036_854_775_000
    assert early == -9_223_372_036_854_775_000


def test_records_of_aborted_transactions_and_markers_are_left_out():
    def of(producer: int, offset: int) -> bytes:
        return encode_batch([Record(offset, TIME, None, b"%d" % offset)], attributes=0x10, producer=producer)

    answer = b"".join(
        [
            of(1, 0), of(2, 1), encode_abort(2, 1), of(1, 3), encode_abort(4, 1, commits=True), of(2, 5),
            encode_abort(6, 2), encode_batch([Record(7, TIME, None, b"7")]),
        ]
    )  # fmt: skip
    aborted = [AbortedTransaction(producer=2, first_offset=1), AbortedTransaction(producer=1, first_offset=0)]
    assert [one.offset for one in read(answer, aborted=aborted)] == [3, 7]
    assert [one.offset for one in read(answer, aborted=aborted[:1])] == [0, 3, 7]


def test_a_piece_of_a_batch_at_the_end_waits_for_the_next_answer():
    whole, next_one = encode_batch([Record(1, TIME)]), encode_batch([Record(2, TIME)])
    for size in range(len(next_one)):
        assert [one.offset for one in read(whole + next_one[:size])] == [1]


def test_an_older_format_is_refused_by_name():
    answer = bytearray(encode_batch([Record(7, TIME)]))
    answer[16] = 1
    with pytest.raises(PermanentError, match=r"at offset 7 .* format 1, .* source.kafka.reader to connector"):
        read(bytes(answer))


def test_every_flipped_bit_is_noticed_by_the_checksum_or_leaves_a_piece_that_is_waited_for():
    answer = encode_batch([Record(7, TIME, b"key", b"value", ((b"h", b"v"),))])
    whole = read(answer)
    for at in range(8, len(answer)):
        damaged = bytearray(answer)
        damaged[at] ^= 1 << random.randrange(8)
        try:
            found = read(bytes(damaged))
        except PermanentError:
            continue
        # The length says that more is to come, or the leader epoch is another one, which nobody reads.
        assert found == [] or (12 <= at < 16 and found == whole)


def damage(dice: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(dice.randrange(1, 4)):
        match dice.randrange(4):
            case 0:
                data[dice.randrange(len(data))] = dice.choice([0, 1, 127, 128, 254, 255, dice.randrange(256)])
            case 1:
                del data[dice.randrange(len(data)) :]
            case 2:
                at = dice.randrange(len(data))
                data[at:at] = dice.randbytes(dice.randrange(1, 12))
            case 3:
                at = dice.randrange(len(data))
                data[at : at + dice.randrange(1, 12)] = b"\xff" * dice.randrange(1, 12)
        data = data or bytearray(1)
    return bytes(data)


@examples(600)
@given(st.integers(0, 1 << 60))
def test_damaged_records_are_refused_exactly_where_a_slow_reader_refuses_them(seed):
    dice = random.Random(seed)
    written = [
        Record(
            100 + number,
            TIME,
            dice.choice([None, b"", dice.randbytes(dice.randrange(60))]),
            dice.choice([None, b"", dice.randbytes(dice.randrange(60))]),
            tuple((b"h", dice.choice([None, b"v"])) for _ in range(dice.randrange(3))),
        )
        for number in range(dice.randrange(1, 9))
    ]
    payload = damage(dice, b"".join(encode_record(one, 100, TIME) for one in written))
    count = max(0, len(written) + dice.choice([0, 0, 0, -1, 1, 1_000, 1 << 30]))
    answer = encode_batch(written, payload=payload, count=count)
    try:
        wanted = [one for one in decode_records(payload, count, 100, TIME) if 0 <= one.offset < NEVER]
    except BrokenRecordsError:
        with pytest.raises(PermanentError):
            read_raw(answer)
    else:
        assert read_raw(answer) == [(one.offset, one.key, one.value) for one in wanted]


def read_raw(answer: bytes) -> list[tuple]:
    view = memoryview(answer)
    found = []
    for block in read_batches(view, list_batches(view, NEVER), 0, NEVER, headers=True):
        block.validate(full=True)
        found += zip(*(block.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)
    return found


def test_headers_are_null_where_a_record_has_none_and_text_that_is_none_is_marked():
    written = [Record(1, TIME), Record(2, TIME, headers=((b"\xff\xfe", b"v"), ("é".encode(), None)))]
    view = memoryview(encode_batch(written))
    (block,) = read_batches(view, list_batches(view, NEVER), 0, NEVER, headers=True)
    assert block.column("headers").to_pylist() == [
        None,
        [{"key": "\ufffd\ufffd", "value": b"v"}, {"key": "é", "value": None}],
    ]


def test_large_answers_come_in_blocks(monkeypatch):
    monkeypatch.setattr("oncehouse.pipeline.kafka_reader.record_batches._BLOCK_BYTES", 5_000)
    answer = b"".join(encode_batch([Record(number, TIME, None, bytes(1_000))]) for number in range(20))
    view = memoryview(answer)
    blocks = list(read_batches(view, list_batches(view, NEVER), 0, NEVER, headers=False))
    assert len(blocks) > 3
    assert np.concatenate([block.column("offset").to_numpy() for block in blocks]).tolist() == list(range(20))
