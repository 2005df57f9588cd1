"""Records of Kafka's format 2 into columns of Arrow: the loop over their bytes, compiled.

Every read and every write is bounded before it happens: a position never passes the end of its batch, a length is
compared with what is left, and no more rows are written than the batches say they have, which is less than their bytes.
"""

from __future__ import annotations

import os

from oncehouse.common.file_permissions import own_temporary_folder

# Compiled once a machine. What is found there is run, so nobody else may write there.
os.environ.setdefault("NUMBA_CACHE_DIR", str(own_temporary_folder(f"oncehouse-{os.getuid()}") / "numba"))

# isort: split
import numba as nb
import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]

LEAST_RECORD_BYTES = 7
"""Length, attributes, two deltas, two lengths and the number of headers."""
# Of one batch, as `parse_records` takes them.
START, SIZE, COUNT, BASE_OFFSET, BASE_TIME, APPEND_TIME, IS_APPENDED = range(7)
# Of one header: where its key and its value stand, and their lengths; -1 is null.
KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE = range(4)

_LEAST_MILLISECONDS = -9_223_372_036_854_775
_MOST_MILLISECONDS = 9_223_372_036_854_775
_LONGEST_VARINT = 63


@intrinsic
def _copy(_context, target, at, source, source_at, size):
    """memcpy; the caller has compared both ends with both arrays."""
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        to, to_at, of, of_at, count = arguments
        to_data = context.make_array(signature.args[0])(context, builder, to).data
        of_data = context.make_array(signature.args[2])(context, builder, of).data
        cgutils.raw_memcpy(builder, builder.gep(to_data, [to_at]), builder.gep(of_data, [of_at]), count, 1)
        return context.get_dummy_value()

    return signature, generate


@njit(inline="always")
def _read_varint(data, at, end):
    """The value and where it ends; -1 where it does not end."""
    value = nb.uint64(0)
    shift = nb.uint64(0)
    while at < end and shift <= _LONGEST_VARINT:
        byte = nb.uint64(data[at])
        at += 1
        value |= (byte & nb.uint64(127)) << shift
        if byte < 128:
            return nb.int64(value >> nb.uint64(1)) ^ -nb.int64(value & nb.uint64(1)), at
        shift += nb.uint64(7)
    return nb.int64(0), nb.int64(-1)


@njit(cache=True, nogil=True)
def parse_records(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one loop over bytes
    data,
    batches,
    first,
    end,
    offsets,
    times,
    key_ends,
    keys,
    has_key,
    value_ends,
    values,
    has_value,
    header_ends,
    headers,
    with_headers,
):
    """Append the records with `first <= offset < end`; (rows, headers, the batch whose bytes are no records or -1)."""
    rows = nb.int64(0)
    keys_at = nb.int64(0)
    values_at = nb.int64(0)
    found_headers = nb.int64(0)
    key_ends[0] = 0
    value_ends[0] = 0
    header_ends[0] = 0
    for batch in range(len(batches)):
        at = batches[batch, START]
        stop = at + batches[batch, SIZE]
        for _ in range(batches[batch, COUNT]):
            size, at = _read_varint(data, at, stop)
            if at < 0 or size < LEAST_RECORD_BYTES - 1 or size > stop - at:
                return rows, found_headers, batch
            record_end = at + size
            at += 1  # attributes, unused
            time, at = _read_varint(data, at, record_end)
            if at < 0:
                return rows, found_headers, batch
            delta, at = _read_varint(data, at, record_end)
            if at < 0:
                return rows, found_headers, batch
            key_size, at = _read_varint(data, at, record_end)
            if at < 0 or key_size > record_end - at:
                return rows, found_headers, batch
            key_at = at
            at += max(key_size, 0)
            value_size, at = _read_varint(data, at, record_end)
            if at < 0 or value_size > record_end - at:
                return rows, found_headers, batch
            value_at = at
            at += max(value_size, 0)
            count, at = _read_varint(data, at, record_end)
            if at < 0 or count < 0 or count > record_end - at or (count == 0 and at != record_end):
                return rows, found_headers, batch
            offset = batches[batch, BASE_OFFSET] + delta
            if offset < first or offset >= end:
                at = record_end
                continue
            if with_headers:
                for _header in range(count):
                    header_key_size, at = _read_varint(data, at, record_end)
                    if at < 0 or header_key_size < 0 or header_key_size > record_end - at:
                        return rows, found_headers, batch
                    headers[found_headers, KEY_AT] = at
                    headers[found_headers, KEY_SIZE] = header_key_size
                    at += header_key_size
                    header_size, at = _read_varint(data, at, record_end)
                    if at < 0 or header_size > record_end - at:
                        return rows, found_headers, batch
                    headers[found_headers, VALUE_AT] = at
                    headers[found_headers, VALUE_SIZE] = header_size
                    at += max(header_size, 0)
                    found_headers += 1
                if at != record_end:
                    return rows, found_headers, batch
                header_ends[rows + 1] = found_headers
            offsets[rows] = offset
            if batches[batch, IS_APPENDED]:
                time = batches[batch, APPEND_TIME]
            else:
                time += batches[batch, BASE_TIME]
            times[rows] = min(max(time, _LEAST_MILLISECONDS), _MOST_MILLISECONDS) * 1000
            if key_size > 0:
                _copy(keys, keys_at, data, key_at, key_size)  # type: ignore[call-arg]
                keys_at += key_size
            has_key[rows] = key_size >= 0
            if value_size > 0:
                _copy(values, values_at, data, value_at, value_size)  # type: ignore[call-arg]
                values_at += value_size
            has_value[rows] = value_size >= 0
            rows += 1
            key_ends[rows] = keys_at
            value_ends[rows] = values_at
            at = record_end
        if at != stop:
            return rows, found_headers, batch
    return rows, found_headers, nb.int64(-1)


@njit(cache=True, nogil=True)
def gather_spans(data, spans, at_column, rows, ends, has, gathered):
    """Copy one part of each header, its key or its value, behind the one before."""
    at = nb.int64(0)
    ends[0] = 0
    for row in range(rows):
        size = spans[row, at_column + 1]
        has[row] = size >= 0
        if size > 0:
            _copy(gathered, at, data, spans[row, at_column], size)  # type: ignore[call-arg]
            at += size
        ends[row + 1] = at
