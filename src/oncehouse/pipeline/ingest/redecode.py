"""Records of the ledger decoded once more, from the bytes that were kept with each key file.

What was decoded once must be decoded again: a pipeline file that has changed may lose no row silently.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from oncehouse.errors import PermanentError
from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.formats.base import Decoded, Decoder
from oncehouse.pipeline.ingest.part_files import RAW_SCHEMA, read_rows

_BLOCK_ROWS = 50_000
_ADVICE = "Put the fields back under which it was read."


def redecode_records(
    store: FileStore, decoder: Decoder, raw: FileRef, *, may_skip: bool = False
) -> Iterator[tuple[pa.RecordBatch, Decoded]]:
    """The records of a key file in their order, block by block, with what they were decoded to.

    With `may_skip` the decoder also shapes, and may leave out what is not wanted any more.
    """
    for block in read_rows(store, raw, RAW_SCHEMA.names).to_batches(max_chunksize=_BLOCK_ROWS):
        decoded = decoder.decode(block)
        skipped = len(decoded.skipped) if may_skip else 0
        if decoded.rows.num_rows + skipped != block.num_rows:
            raise PermanentError(_describe(block, decoded))
        yield block, decoded


def describe_place(block: pa.RecordBatch, index: int) -> str:
    place = block.slice(index, 1).to_pylist()[0]
    return f"topic {place['topic']} partition {place['partition']} offset {place['offset']}"


def _describe(block: pa.RecordBatch, decoded: Decoded) -> str:
    if decoded.rejected:
        first = decoded.rejected[0]
        place, reason = describe_place(block, first.index), f"{first.reason}: {first.detail}"
        if first.reason is Reason.NOT_TRANSFORMED:
            return f"{place} cannot be transformed ({reason}). Correct the expression or function."
        return f"{place} does not fit source.fields any more ({reason}). {_ADVICE}"
    missing = sorted(set(range(block.num_rows)) - set(decoded.taken.tolist()))
    return f"{describe_place(block, missing[0])} does not become a row any more. {_ADVICE}"
