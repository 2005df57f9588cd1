"""Which format a pipeline's records have, as the pipeline file declares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from oncehouse.pipeline.decoding import Decoder, Format, Limits
from oncehouse.pipeline.json_format import JsonFormat

if TYPE_CHECKING:
    from oncehouse.config import Pipeline, Source
    from oncehouse.pipeline.manifest import ReadPlan


def format_of(source: Source) -> Format:
    match source.format:
        case "json":
            return JsonFormat()
        case "jsonl":
            return JsonFormat(lines=True)
        case _:
            assert_never(source.format)


def needs_headers(pipeline: Pipeline) -> bool:
    """Whether headers are read from Kafka and kept: for the format, or because they make events unique."""
    return format_of(pipeline.source).needs_headers or bool(pipeline.identity.headers)


def make_decoder(plan: ReadPlan) -> Decoder:
    limits = Limits(max_message_bytes=plan.max_message_bytes, max_depth=plan.max_depth)
    return plan.format.make_decoder(plan.fields, plan.schemas, limits)
