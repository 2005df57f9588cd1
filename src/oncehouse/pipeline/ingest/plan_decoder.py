"""The decoder of a read plan: the format of its records, and the transformation of their rows."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from oncehouse.column_types.types import arrow_type
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.formats.base import DecodeLimits, Decoder
from oncehouse.pipeline.formats.dataframe import FORMAT, DataFrameDecoder, MixedDecoder
from oncehouse.pipeline.ingest.manifest import ReadPlan


def make_decoder(plan: ReadPlan, given: Decoder | None = None, *, refuses: bool = False) -> Decoder:
    """The decoder of a plan's records, or one that is given, and what shapes their rows.

    With `refuses` it takes no records without what their ids depend on; what was settled once is read without.
    """
    exact = frozenset([*map(".".join, plan.identity.fields), *plan.needed_columns])
    limits = DecodeLimits(max_message_bytes=plan.max_message_bytes, max_depth=plan.max_depth, exact=exact)
    if refuses:
        limits = replace(limits, refused=plan.refused, must_be_set=plan.must_be_set)
    decoder = given or plan.format.make_decoder(plan.fields, plan.schemas, limits)
    if given is None and any(schema.format == FORMAT for schema in plan.schemas):
        schema = pa.schema([(name, arrow_type(type_)) for name, type_ in plan.fields.items()])
        decoder = MixedDecoder(decoder, DataFrameDecoder(plan.fields, plan.schemas, limits), schema)
    if plan.transform is None:
        return decoder
    # The engine is loaded where something is transformed, and nowhere else.
    from oncehouse.pipeline.transform.transformer import Transformer, TransformingDecoder

    return TransformingDecoder(decoder, Transformer(plan.transform, FileStore(plan.files_root)))
