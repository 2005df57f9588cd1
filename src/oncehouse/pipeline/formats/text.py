"""Plain text as a format: a message, or each of its lines, is one field, or is taken apart by a pattern.

Patterns are RE2's, whose time grows with the length of the text and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.masks import cast_where_possible, null_mask
from oncehouse.pipeline.convert.rejection import Problem, Reason
from oncehouse.pipeline.formats.base import (
    Decoded,
    Decoder,
    Limits,
    OfValues,
    SingleRows,
    number_single_rows,
    spread,
)
from oncehouse.pipeline.formats.csv.splitter import Marks, split_lines
from oncehouse.pipeline.formats.result_builder import Gathering
from oncehouse.pipeline.formats.text_columns import TextColumn, fit_texts

if TYPE_CHECKING:
    from oncehouse.config.formats import Text

_LINES = Marks(delimiter=ord(","), quote=None)
_BAD_UTF8 = Problem(reason=Reason.BAD_UTF8, detail="the bytes are not UTF-8")
_NO_MATCH = Problem(reason=Reason.MALFORMED, detail="the text does not match source.text.pattern")


def make_text_format(section: Text) -> TextFormat:
    return TextFormat(pattern=section.pattern, lines=section.lines)


@dataclass(frozen=True, kw_only=True)
class TextFormat(SingleRows):
    pattern: str | None
    lines: bool

    @property
    def several_rows(self) -> bool:
        return self.lines

    def unfold(self, block: pa.RecordBatch) -> pa.RecordBatch:
        if not self.lines:
            return number_single_rows(block)
        return spread(block, split_lines(block.column("value"), _LINES, skip_first=False))

    def make_decoder(
        self, fields: Mapping[str, c.ColumnType], schemas: Sequence[Schema], limits: Limits
    ) -> Decoder:
        del schemas
        return OfValues(TextDecoder(fields=fields, pattern=self.pattern, limits=limits))


class TextDecoder:
    def __init__(self, *, fields: Mapping[str, c.ColumnType], pattern: str | None, limits: Limits) -> None:
        self._fields = dict(fields)
        self._pattern = pattern
        self._limits = limits
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])

    def decode(self, values: pa.Array) -> Decoded:
        gathering = Gathering(self._schema)
        places, skipped = gathering.screen(values, self._limits.max_message_bytes)
        texts, bad = cast_where_possible(values.take(pa.array(places)), pa.string())
        gathering.reject(places[bad], lambda _: _BAD_UTF8)
        places, texts = places[~bad], texts.filter(pa.array(~bad))
        if self._pattern is None:
            columns = [TextColumn(text=texts)]
        else:
            found = pc.extract_regex(texts, self._pattern)
            unmatched = null_mask(found)
            gathering.reject(places[unmatched], lambda _: _NO_MATCH)
            places, found = places[~unmatched], found.filter(pa.array(~unmatched))
            columns = [TextColumn(text=found.field(name)) for name in self._fields]
        fit_texts(gathering, places, columns, self._fields, null="")
        return gathering.finish(skipped)
