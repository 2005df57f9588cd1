"""What a decoder has made of a block so far, piece by piece, put together in the block's order at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from oncehouse.pipeline.convert.arrow_buffers import text_buffers
from oncehouse.pipeline.convert.masks import Mask, null_mask
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.formats.base import Decoded, Places, WaitingRecord


class ResultBuilder:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces: list[tuple[Places, pa.RecordBatch, str | None]] = []
        self._rejected: list[Rejection] = []
        self._waiting: list[WaitingRecord] = []

    def keep(self, places: Places, rows: pa.RecordBatch, schema: str | None = None) -> None:
        if len(places):
            self._pieces.append((places, rows, schema))

    def reject(self, places: Places, explain: Callable[[int], RejectionCause]) -> None:
        """`explain` gets the number of a place among those given."""
        self._rejected += [explain(number).at(place) for number, place in enumerate(places.tolist())]

    def add_rejected(self, rejected: Iterable[Rejection]) -> None:
        self._rejected += rejected

    def wait(self, places: Places, schema: str) -> None:
        self._waiting += [WaitingRecord(index=place, schema=schema) for place in places.tolist()]

    def screen(self, values: pa.Array, max_message_bytes: int) -> tuple[Places, Places]:
        """Places of messages to be decoded, and of those without a value; those too big are rejected."""
        nulls = null_mask(values)
        lengths = _lengths(values)
        big: Mask = (lengths > max_message_bytes) & ~nulls
        places = np.flatnonzero(big)
        self.reject(
            places,
            lambda number: RejectionCause(
                reason=Reason.TOO_BIG,
                detail=f"{lengths[places[number]]} bytes, max_message_bytes is {max_message_bytes}",
            ),
        )
        return np.flatnonzero(~nulls & ~big), np.flatnonzero(nulls)

    def finish(self, skipped: Places) -> Decoded:
        taken, rows, schemas = self._join()
        return Decoded(
            rows=rows,
            taken=taken,
            rejected=tuple(sorted(self._rejected, key=lambda rejection: rejection.index)),
            skipped=skipped,
            waiting=tuple(sorted(self._waiting, key=lambda waiting: waiting.index)),
            schemas=schemas,
        )

    def _join(self) -> tuple[Places, pa.RecordBatch, pa.Array | None]:
        if not self._pieces:
            empty = [pa.array([], field.type) for field in self._schema]
            rows = pa.RecordBatch.from_arrays(empty, schema=self._schema)
            return np.zeros(0, dtype=np.int64), rows, None
        schemas = None
        if any(name is not None for _, _, name in self._pieces):
            schemas = pa.concat_arrays(
                [pa.repeat(pa.scalar(name, pa.string()), len(places)) for places, _, name in self._pieces]
            )
        taken, rows, _ = self._pieces[0]
        if len(self._pieces) > 1:
            taken = np.concatenate([places for places, _, _ in self._pieces])
            rows = pa.concat_batches([batch for _, batch, _ in self._pieces])
        if (taken[1:] > taken[:-1]).all():
            return taken, rows, schemas
        order = np.argsort(taken, kind="stable")
        indices = pa.array(order)
        return taken[order], rows.take(indices), schemas and schemas.take(indices)


def _lengths(values: pa.Array) -> Places:
    lengths: Places = np.diff(text_buffers(values)[0])
    return lengths
