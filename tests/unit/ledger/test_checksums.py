"""Checksums of files: of two kinds, the same however a file is read, and different where a byte is."""

from __future__ import annotations

import io

import numpy as np
import pytest

from oncehouse.errors import CorruptFileError
from oncehouse.ledger.storage.checksums import (
    BLOCK_BYTES,
    checksum,
    checksum_like,
    digest_like,
    read_blocks,
    sha256_checksum,
)
from oncehouse.ledger.storage.file_store import FileStore

SIZES = [0, 1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 17, 9 * BLOCK_BYTES + 7]


def make_content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


class Slow(io.BytesIO):
    """Hands out less than it is asked for."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 999_983))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [checksum, sha256_checksum])
def test_a_file_has_the_same_checksum_however_it_is_read(tmp_path, make, size):
    path = tmp_path / "file"
    path.write_bytes(make_content(size))
    known = make(path)
    assert len(known) <= 80, "what the catalog holds of it"
    assert checksum_like(known, path) == known
    digest = digest_like(known)
    for block in read_blocks(Slow(make_content(size))):
        digest.update(block)
    assert digest.hexdigest() == known


@pytest.mark.parametrize("place", [0, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 999])
def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path, place):
    store = FileStore(str(tmp_path))
    content = bytearray(make_content(BLOCK_BYTES + 1000))
    ref = store.put("file", lambda path: (tmp_path / "file").write_bytes(content))
    store.verify(ref)
    assert store.compared(ref) == tmp_path / "file"
    content[place] ^= 1
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CorruptFileError, match="does not match its checksum"):
        store.verify(ref)
    with pytest.raises(CorruptFileError, match="does not match its checksum"):
        store.compared(ref)


def test_blocks_that_change_places_are_noticed(tmp_path):
    path = tmp_path / "file"
    one, other = make_content(BLOCK_BYTES), make_content(BLOCK_BYTES + 1)[:BLOCK_BYTES]
    found = set()
    for blocks in ((one, other), (other, one)):
        path.write_bytes(b"".join(blocks))
        found.add(checksum(path))
    assert len(found) == 2
