"""Every answer that a command shows in a test is held to the published schema.

`hold_answers` is asked for once a session, by conftest. Answers of commands in processes of their own are not seen.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from oncehouse.cli import output
from oncehouse.common.json_documents import Answer

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "reference" / "cli.schema.json"


@cache
def published() -> dict[str, Any]:
    return json.loads(SCHEMA.read_text(encoding="utf-8"))


@cache
def validator(place: str) -> Draft202012Validator:
    """For what stands there under `$defs`: a record, or `commands/batches list`."""
    return Draft202012Validator({"$ref": f"#/$defs/{place}", "$defs": published()["$defs"]})


def load_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_schema", ROOT / "tools" / "cli_schema.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def hold_answers() -> Iterator[None]:
    unheld = output.plain

    def held(value: object) -> Any:
        told = unheld(value)
        if isinstance(value, Answer):
            validator(type(value).__name__).validate(told)
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "plain", held)
        yield
