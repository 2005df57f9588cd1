"""Records of the ledger decoded once more, from the bytes that were kept with each key file.

What was decoded once must be decoded again: a pipeline file that has changed may lose no row silently.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from oncehouse.errors import PermanentError
from oncehouse.ledger.files import FileStore
from oncehouse.ledger.records import FileRef
from oncehouse.pipeline.decoding import Decoded, Decoder
from oncehouse.pipeline.parts import RAW_SCHEMA, read_rows

_BLOCK_ROWS = 50_000


def decode_again(
    store: FileStore, decoder: Decoder, raw: FileRef
) -> Iterator[tuple[pa.RecordBatch, Decoded]]:
    """The records of a key file in their order, block by block, with what they were decoded to."""
    for block in read_rows(store, raw, RAW_SCHEMA.names).to_batches(max_chunksize=_BLOCK_ROWS):
        decoded = decoder.decode(block)
        if decoded.rows.num_rows != block.num_rows:
            raise PermanentError(f"{_tell(block, decoded)} Put the fields back under which it was read.")
        yield block, decoded


def tell_place(block: pa.RecordBatch, index: int) -> str:
    place = block.slice(index, 1).to_pylist()[0]
    return f"topic {place['topic']} partition {place['partition']} offset {place['offset']}"


def _tell(block: pa.RecordBatch, decoded: Decoded) -> str:
    if decoded.rejected:
        first = decoded.rejected[0]
        reason = f"{first.reason}: {first.detail}"
        return f"{tell_place(block, first.index)} does not fit source.fields any more ({reason})."
    missing = sorted(set(range(block.num_rows)) - set(decoded.taken.tolist()))
    return f"{tell_place(block, missing[0])} does not become a row any more."
