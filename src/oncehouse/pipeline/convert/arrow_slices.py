"""Pieces of one buffer as a binary array: Arrow copies them, no index is built for every byte."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from oncehouse.pipeline.convert.arrow_buffers import Offsets


def cut(buffer: pa.Buffer, starts: Offsets, lengths: Offsets) -> pa.Array:
    """The bytes at ascending places: their borders make every other element of an array over the buffer."""
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    borders = np.empty(2 * count, dtype=np.int32)
    borders[0::2] = starts
    borders[1::2] = starts + lengths
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(borders), buffer])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
