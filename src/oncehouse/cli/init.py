"""`oncehouse init`: a commented pipeline file and, next to it, the schema that explains it to editors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.output import say, show_json
from oncehouse.common.file_permissions import open_private
from oncehouse.common.json_documents import Answer
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class WrittenFiles(Answer, of=("init",)):
    file: Path
    schema: Path


def init(file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Write a commented example to FILE, and its schema next to it. An existing FILE is kept."""
    from oncehouse.config.file_loader import SCHEMA_FILE_NAME, example_text, json_schema_text

    schema = file.parent / SCHEMA_FILE_NAME
    write_new(file, example_text())
    if not schema.exists() or schema.read_text(encoding="utf-8") != json_schema_text():
        schema.write_text(json_schema_text(), encoding="utf-8")
    if as_json:
        show_json(WrittenFiles(file=file, schema=schema))
        return
    say(f"wrote {file} and {schema}\nnext: edit it, then `oncehouse check {file}`")


def write_new(file: Path, text: str) -> None:
    """For its owner alone: sooner or later a password stands in it."""
    try:
        with os.fdopen(open_private(file, new=True), "w", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists already; name another file or remove it first") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}") from None
