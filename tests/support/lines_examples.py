"""Lines of CSV and text, decoded as a read task does it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from oncehouse.column_types.parser import parse_type
from oncehouse.config.formats import Csv
from oncehouse.pipeline.formats.base import Decoded, DecodeLimits, Format
from oncehouse.pipeline.formats.csv.decoder import make_csv_format

LIMITS = DecodeLimits(max_message_bytes=1 << 20, max_depth=64)


def unfold(format_: Format, values: list[bytes | None]) -> pa.RecordBatch:
    offsets = pa.array(range(len(values)), pa.int64())
    return format_.unfold(pa.record_batch({"offset": offsets, "value": pa.array(values, pa.binary())}))


def decode(format_: Format, fields: dict[str, str], values: list[bytes | None]) -> Decoded:
    types = {name: parse_type(text) for name, text in fields.items()}
    return format_.make_decoder(types, (), LIMITS).decode(unfold(format_, values))


def decode_csv(fields: dict[str, str], values: list[bytes | None], **section: Any) -> Decoded:
    return decode(make_csv_format(Csv(**section), tuple(fields)), fields, values)


TWO = {"id": "Int64", "name": "String"}
