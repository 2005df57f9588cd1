"""Where the driver gets Avro schemas from: files that the pipeline file lists, and a registry."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.ledger.records import Schema
from oncehouse.pipeline.avro_references import inline_references
from oncehouse.pipeline.avro_schema import parse_schema
from oncehouse.pipeline.registry import RegistryClient

if TYPE_CHECKING:
    from oncehouse.config_formats import Avro

_GREATEST_NUMBER = (1 << 32) - 1


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
        raise ConfigurationError(f"{where}: the file cannot be read ({error})") from None
    parse_schema(text, where=where)
    return Schema(schema=version, format="avro", definition=text)


def ask_registry(section: Avro, names: Collection[str]) -> Iterator[Schema]:
    """Those that the registry has and that are Avro records; records of all others wait."""
    numbers = [name for name in names if name.isascii() and name.isdigit() and int(name) <= _GREATEST_NUMBER]
    if section.registry is None or not numbers:
        return
    client = RegistryClient(section.registry)
    for name in sorted(numbers, key=int):
        try:
            found = client.fetch(int(name))
        except TransientError:
            return  # it is away for all of them
        except PermanentError:
            continue  # one schema that cannot be had must not stop the others
        if found is None or found.kind != "AVRO":
            continue
        where = f"schema {name} of the registry"
        try:
            text = inline_references(found.text, found.references, where=where)
            parse_schema(text, where=where)
        except ConfigurationError:
            continue
        yield Schema(schema=name, format="avro", definition=text)
