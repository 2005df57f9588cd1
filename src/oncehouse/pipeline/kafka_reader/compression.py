"""The bytes of record batches without their compression, one behind the other."""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import numpy as np

from oncehouse.errors import PermanentError
from oncehouse.pipeline.kafka_reader.record_parser import Bytes

_NONE, _SNAPPY = 0, 2
_DECOMPRESSORS: dict[int, Any] = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}
_FIRST_BYTES = 4 << 20
MOST_BYTES = 1 << 30
"""Of one batch; Kafka bounds only what it is compressed to."""
# Java's own framing of snappy: this, two numbers for the version, then blocks with their lengths.
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_LENGTH = struct.Struct(">i")


class DecompressionBuffer:
    """Grows as needed; what was added stays at its place."""

    def __init__(self) -> None:
        self.data: Bytes = np.empty(_FIRST_BYTES, dtype=np.uint8)
        self.used = 0

    def add(self, packed: memoryview, codec: int, offset: int) -> tuple[int, int]:
        """Where the records are, and how many bytes; `offset` is named in errors."""
        start = self.used
        try:
            if codec == _NONE:
                self._reserve(len(packed))
                self.data[start : start + len(packed)] = np.frombuffer(packed, dtype=np.uint8)
                self.used += len(packed)
            elif codec == _SNAPPY:
                self._add_snappy(packed, start)
            elif codec in _DECOMPRESSORS:
                self._add_stream(packed, _DECOMPRESSORS[codec])
            else:
                raise PermanentError(f"the batch at offset {offset} has an unknown compression, {codec}")
        except (cramjam.DecompressionError, struct.error) as error:
            raise PermanentError(f"the batch at offset {offset} cannot be decompressed: {error}") from error
        return start, self.used - start

    def _add_stream(self, packed: memoryview, decompressor: Any) -> None:
        wanted = len(packed) * 4
        while True:
            self._reserve(wanted)
            try:
                self.used += decompressor.decompress_into(packed, self.data[self.used :])
            except cramjam.DecompressionError:
                # Too little memory raises what damage raises; damage raises it again with more.
                if wanted >= MOST_BYTES or len(self.data) - self.used >= MOST_BYTES:
                    raise
                wanted = min(max(wanted, len(self.data) - self.used) * 4, MOST_BYTES)
            else:
                return

    def _add_snappy(self, packed: memoryview, start: int) -> None:
        if bytes(packed[: len(_XERIAL)]) != _XERIAL:
            self._add_raw_snappy(packed, start)
            return
        at = _XERIAL_HEADER
        while at < len(packed):
            (size,) = _LENGTH.unpack_from(packed, at)
            at += _LENGTH.size
            if not 0 <= size <= len(packed) - at:
                raise cramjam.DecompressionError("a block of snappy is longer than its batch")
            self._add_raw_snappy(packed[at : at + size], start)
            at += size

    def _add_raw_snappy(self, packed: memoryview, start: int) -> None:
        size = cramjam.snappy.decompress_raw_len(packed)
        if (whole := self.used - start + size) > MOST_BYTES:
            raise cramjam.DecompressionError(f"it has {whole} bytes, more than {MOST_BYTES}")
        self._reserve(size)
        buffer = self.data[self.used : self.used + size].data
        self.used += cramjam.snappy.decompress_raw_into(packed, buffer)

    def _reserve(self, size: int) -> None:
        if self.used + size > len(self.data):
            grown = np.empty(max(len(self.data) * 2, self.used + size), dtype=np.uint8)
            grown[: self.used] = self.data[: self.used]
            self.data = grown
