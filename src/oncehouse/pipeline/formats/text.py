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
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.formats.base import (
    Decoded,
    DecodeLimits,
    Decoder,
    SingleRows,
    ValueDecoder,
    explode_rows,
    number_single_rows,
)
from oncehouse.pipeline.formats.csv.splitter import Dialect, split_lines
from oncehouse.pipeline.formats.result_builder import ResultBuilder
from oncehouse.pipeline.formats.text_columns import TextColumn, convert_texts

if TYPE_CHECKING:
    from oncehouse.config.formats import Text

_LINE_DIALECT = Dialect(delimiter=ord(","), quote=None)
_BAD_UTF8 = RejectionCause(reason=Reason.BAD_UTF8, detail="the bytes are not UTF-8")
_NO_MATCH = RejectionCause(reason=Reason.MALFORMED, detail="the text does not match source.text.pattern")


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
        return explode_rows(block, split_lines(block.column("value"), _LINE_DIALECT, skip_first=False))

    def make_decoder(
        self, fields: Mapping[str, c.ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> Decoder:
        del schemas
        return ValueDecoder(TextDecoder(fields=fields, pattern=self.pattern, limits=limits))


class TextDecoder:
    def __init__(
        self, *, fields: Mapping[str, c.ColumnType], pattern: str | None, limits: DecodeLimits
    ) -> None:
        self._fields = dict(fields)
        self._pattern = pattern
        self._limits = limits
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])

    def decode(self, values: pa.Array) -> Decoded:
        builder = ResultBuilder(self._schema)
        places, skipped = builder.screen(values, self._limits.max_message_bytes)
        texts, bad = cast_where_possible(values.take(pa.array(places)), pa.string())
        builder.reject(places[bad], lambda _: _BAD_UTF8)
        places, texts = places[~bad], texts.filter(pa.array(~bad))
        if self._pattern is None:
            columns = [TextColumn(text=texts)]
        else:
            found = pc.extract_regex(texts, self._pattern)
            unmatched = null_mask(found)
            builder.reject(places[unmatched], lambda _: _NO_MATCH)
            places, found = places[~unmatched], found.filter(pa.array(~unmatched))
            columns = [TextColumn(text=found.field(name)) for name in self._fields]
        convert_texts(builder, places, columns, self._fields, null="")
        return builder.finish(skipped)
