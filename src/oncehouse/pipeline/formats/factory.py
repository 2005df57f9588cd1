"""Which format a pipeline's records have, as the pipeline file declares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from oncehouse.config.base import SectionT
from oncehouse.config.formats import Csv, Debezium, Text
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.formats.avro.decoder import make_avro_format
from oncehouse.pipeline.formats.base import Format
from oncehouse.pipeline.formats.csv.decoder import make_csv_format
from oncehouse.pipeline.formats.dataframe import DataFrameFormat
from oncehouse.pipeline.formats.debezium.decoder import DebeziumFormat
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.formats.protobuf.schema_sources import make_protobuf_format
from oncehouse.pipeline.formats.text import make_text_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncehouse.config.pipeline import Pipeline, Source
    from oncehouse.ledger.models import Schema


def format_of(source: Source, schemas: Sequence[Schema] = ()) -> Format:  # noqa: PLR0911 - one case a format
    """`schemas` are those that are known: where fields are found by number, they say which."""
    match source.format:
        case "json" | "jsonl":
            return JsonFormat(lines=source.format == "jsonl", watch=source.new_fields != "ignore")
        case "protobuf":
            return make_protobuf_format(require_section(source.protobuf, "protobuf"), schemas, source.fields)
        case "avro":
            return make_avro_format(require_section(source.avro, "avro"))
        case "debezium":
            return DebeziumFormat(precise_decimals=(source.debezium or Debezium()).decimals == "precise")
        case "csv":
            return make_csv_format(source.csv or Csv(), tuple(source.fields))
        case "text":
            return make_text_format(source.text or Text())
        case "frame":
            return DataFrameFormat()
        case _:
            assert_never(source.format)


def needs_headers(pipeline: Pipeline) -> bool:
    """Whether headers are read from Kafka and kept: for the format, or because they make events unique."""
    return format_of(pipeline.source).needs_headers or bool(pipeline.identity.headers)


def require_section(section: SectionT | None, name: str) -> SectionT:
    if section is None:
        raise ConfigurationError(f"source.format is {name}; add the section source.{name}")
    return section
