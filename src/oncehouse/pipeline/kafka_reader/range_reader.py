"""Ranges of offsets as blocks of records, in the order of the ranges and of their offsets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
from kafka.future import Future

from oncehouse.errors import DataLossError, TransientError
from oncehouse.pipeline.kafka_reader.access import KafkaAccess, SourceRange
from oncehouse.pipeline.kafka_reader.connection import (
    Connection,
    LeaderError,
    OffsetGoneError,
    drop_connection,
    open_connection,
)
from oncehouse.pipeline.kafka_reader.record_batches import keep_committed, list_batches, read_batches
from oncehouse.pipeline.spark.arrow_batches import BLOCK_BYTES, BLOCK_ROWS

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


def read_ranges(
    access: KafkaAccess, ranges: Sequence[SourceRange], *, headers: bool
) -> Iterator[pa.RecordBatch]:
    """Blocks of (source, offset, timestamp, key, value), with headers where asked, of one partition each.

    Raises DataLossError where Kafka no longer has an offset, TransientError where nothing comes for too long.
    """
    connection = open_connection(access)
    try:
        for span in ranges:
            if span.end > span.start:
                yield from _gather(_RangeReader(connection, access, span, headers=headers).read())
    except BaseException:
        drop_connection(access)
        raise


def _gather(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As many rows in each as Spark hands over, or fewer where they are large; answers of brokers hold any number."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for block in blocks:
        start = 0
        while start < block.num_rows:
            piece = block.slice(start, BLOCK_ROWS - rows)
            held.append(piece)
            start, rows, size = start + piece.num_rows, rows + piece.num_rows, size + piece.nbytes
            if rows == BLOCK_ROWS or size >= BLOCK_BYTES:
                yield _join(held)
                held, rows, size = [], 0, 0
    if held:
        yield _join(held)


def _join(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1:
        return held[0]
    return pa.Table.from_batches(held).combine_chunks().to_batches()[0]


class _RangeReader:
    def __init__(
        self, connection: Connection, access: KafkaAccess, span: SourceRange, *, headers: bool
    ) -> None:
        self._connection = connection
        self._access = access
        self._span = span
        self._headers = headers
        self._moved_at = time.monotonic()
        self._pause_seconds = 0.0
        self._reason = "no answer"
        self._gone_at: int | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        place, end = self._span.place, self._span.end
        offset = self._span.start
        if not self._connection.knows(place):
            self._learn_leader("")
        sent = None
        while offset < end:
            try:
                while sent is None and self._connection.is_throttled(place):
                    self._note_progress()
                sent = sent or self._connection.send_fetch(place, offset)
                answer = self._connection.wait(place, sent)
            except LeaderError as error:
                self._learn_leader(str(error))
                continue
            except OffsetGoneError as error:
                self._require_newer_leader(offset, error)
                continue
            finally:
                sent = None
            batches = list_batches(answer.records, end)
            following = batches[-1].last_offset + 1 if batches else offset
            if following <= offset:
                # A new leader may not know yet up to where all others follow it.
                self._pause(f"nothing comes at offset {offset}")
                continue
            if following < end:
                # It comes while this answer is worked on.
                sent = self._send_ahead(following)
            committed = keep_committed(answer.records, batches, answer.aborted)
            for block in read_batches(answer.records, committed, offset, end, headers=self._headers):
                yield self._with_source(block)
            # Not before: the time that others take over the blocks is not Kafka's.
            self._note_progress()
            offset = following

    def _send_ahead(self, offset: int) -> Future | None:
        place = self._span.place
        with suppress(LeaderError):
            if not self._connection.is_throttled(place):
                return self._connection.send_fetch(place, offset)
        return None

    def _with_source(self, block: pa.RecordBatch) -> pa.RecordBatch:
        source = pa.array(np.full(block.num_rows, self._span.source, dtype=np.int32))
        return pa.RecordBatch.from_arrays([source, *block.columns], names=["source", *block.schema.names])

    def _note_progress(self) -> None:
        self._moved_at = time.monotonic()
        self._pause_seconds = 0.0

    def _require_newer_leader(self, offset: int, error: OffsetGoneError) -> None:
        """Only one that was just asked for is believed: an old leader that was cut off may not have the offset yet."""
        if self._gone_at == offset:
            raise DataLossError(
                f"Kafka no longer has offset {offset} of {self._span.place}, which was still to be read up to "
                f"{self._span.end} ({error})."
            ) from error
        self._gone_at = offset
        self._learn_leader(str(error))

    def _learn_leader(self, reason: str) -> None:
        while True:
            self._pause(reason)
            try:
                self._connection.refresh(self._span.place.topic)
            except LeaderError as error:
                reason = str(error) or reason
            else:
                if self._connection.knows(self._span.place):
                    return
                reason = "it has no leader"

    def _pause(self, reason: str) -> None:
        """Before another try: none at first, then longer ones; raises when there were enough of them."""
        self._reason = reason or self._reason
        waited = time.monotonic() - self._moved_at
        if waited > self._access.patience_seconds:
            raise TransientError(
                f"Kafka at {self._access.bootstrap_servers}: nothing of {self._span.place} could be read for "
                f"{waited:.0f} s ({self._reason}). The epoch is tried again."
            )
        time.sleep(self._pause_seconds)
        self._pause_seconds = min(max(2 * self._pause_seconds, _PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
