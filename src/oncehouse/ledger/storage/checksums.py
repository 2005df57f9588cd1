"""Checksums of the ledger's files: they find damage, not forgery.

A checksum is XXH3 over each block of the file and SHA-256 over these hashes, and begins with `xxh3-`. Files of
0.1.0 have SHA-256 over the whole file, without a prefix; they are read, not written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from oncehouse.common.hashing import xxh3_hashes

BLOCK_BYTES = 1 << 22
# Several blocks at once: what a call costs besides hashing is most of it for one.
_PIECE_BYTES = 8 * BLOCK_BYTES
_PREFIX = "xxh3-"


class Digest(Protocol):
    """Takes the blocks of a file one after the other."""

    def update(self, block: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _BlockDigest:
    def __init__(self) -> None:
        self._hashes = bytearray()

    def update(self, block: bytes | pa.Buffer, /) -> None:
        self._hashes += _hash_blocks(pa.py_buffer(block))

    def hexdigest(self) -> str:
        return _PREFIX + hashlib.sha256(self._hashes).hexdigest()


def sha256_checksum(path: Path) -> str:
    with path.open("rb", buffering=0) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def checksum(path: Path) -> str:
    digest = _BlockDigest()
    # Not mapped: a sector that cannot be read would end the process in place of an error.
    with pa.OSFile(str(path)) as source:
        while (piece := source.read_buffer(_PIECE_BYTES)).size:
            digest.update(piece)
    return digest.hexdigest()


def checksum_like(known: str, path: Path) -> str:
    """Of the kind of a known one, to be compared with it."""
    return checksum(path) if known.startswith(_PREFIX) else sha256_checksum(path)


def digest_like(known: str) -> Digest:
    """The same for a file that comes in blocks of BLOCK_BYTES, as `read_blocks` gives them."""
    return _BlockDigest() if known.startswith(_PREFIX) else hashlib.sha256()


def read_blocks(source: Any) -> Iterator[bytes]:
    """Blocks of BLOCK_BYTES, the last of them shorter, however the source hands them out."""
    while block := source.read(BLOCK_BYTES):
        while len(block) < BLOCK_BYTES and (more := source.read(BLOCK_BYTES - len(block))):
            block += more
        yield block


def _hash_blocks(content: pa.Buffer) -> bytes:
    borders = np.append(np.arange(0, content.size, BLOCK_BYTES, dtype=np.int64), content.size)
    buffers = [None, pa.py_buffer(borders), content]
    blocks = pa.Array.from_buffers(pa.large_binary(), len(borders) - 1, buffers)
    return xxh3_hashes(blocks).astype(">u8").tobytes()
