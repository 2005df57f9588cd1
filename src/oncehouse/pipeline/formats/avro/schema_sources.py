"""Where the driver gets Avro schemas from: files that the pipeline file lists, and a registry."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.avro.schema import parse_schema
from oncehouse.pipeline.formats.avro.schema_references import inline_references
from oncehouse.pipeline.formats.schema_registry import fetch_some, read_number

if TYPE_CHECKING:
    from oncehouse.config.formats import Avro


def read_files(section: Avro) -> tuple[Schema, ...]:
    """The schemas of the listed files; one that is wrong is refused."""
    return tuple(
        read_file(path, version, where=f"source.avro.schemas.{version}: {path}")
        for version, path in section.schemas.items()
    )


def read_file(path: str, version: str, *, where: str | None = None) -> Schema:
    """A version as the ledger keeps it, from a schema file."""
    where = where or path
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{where}: the file cannot be read ({reason}); correct the path") from None
    parse_schema(text, where=where)
    return Schema(schema=version, format="avro", definition=text)


def fetch_from_registry(section: Avro, names: Collection[str]) -> Iterator[Schema]:
    """Those that the registry has and that are Avro records; records of all others wait."""
    for name, found in fetch_some(section.registry, {name: read_number(name) for name in names}):
        if found.kind != "AVRO":
            continue
        where = f"schema {name} of the registry"
        try:
            text = inline_references(found.text, found.references, where=where)
            parse_schema(text, where=where)
        except ConfigurationError:
            continue
        yield Schema(schema=name, format="avro", definition=text)
