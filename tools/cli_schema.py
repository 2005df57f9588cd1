"""`docs/reference/cli.schema.json`: what every command prints with `--json`, written from the records that it prints.

`python tools/cli_schema.py` writes the file anew. It says what `oncehouse.cli.output.plain` makes of a value of each
type. Modules are heavy, so commands import their types for annotations alone; here those imports are made.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from oncehouse.cli.app import app  # noqa: F401 - importing it declares all answers
from oncehouse.common.json_documents import ANSWERS, Answer, is_inlined, output_name

FILE = Path(__file__).parents[1] / "docs" / "reference" / "cli.schema.json"
TEXTS = (str, bytes, UUID, PurePath, date, datetime, timedelta)
Schema = dict[str, Any]


def write_schema() -> str:
    """One document for all commands: `#/$defs/commands` has a schema for each, by its words."""
    writer = Writer(*(answer for answers in ANSWERS.values() for answer in answers))
    commands = {
        command: {"anyOf": [writer.name(answer) for answer in answers]}
        if answers[1:]
        else writer.name(answers[0])
        for command, answers in sorted(ANSWERS.items())
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "cli.schema.json",
        "title": "What oncehouse prints with --json",
        "description": "Commands are under $defs/commands by their words. One document a line; fields may be added.",
        "anyOf": [{"$ref": f"#/$defs/commands/{command}"} for command in commands],
        "$defs": {"commands": commands, **dict(sorted(writer.definitions.items()))},
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


class Writer:
    """Schemas of types; records are defined once, by name."""

    def __init__(self, *answers: type[Answer]) -> None:
        self.definitions: dict[str, Schema] = {}
        self._named: dict[str, type] = {answer.__name__: answer for answer in answers}

    def name(self, record: type) -> Schema:
        """A reference to a record, which is defined when it is met first."""
        name = record.__name__
        known = self._named.setdefault(name, record)
        if known is not record:
            name = f"{record.__module__.rpartition('.')[2].title().replace('_', '')}{name}"
            known = self._named.setdefault(name, record)
        assert known is record, f"two records are named {name}"
        if name not in self.definitions:
            self.definitions[name] = {}  # a record may hold records of its own kind
            self.definitions[name] = self.describe_record(record)
        return {"$ref": f"#/$defs/{name}"}

    def describe_record(self, record: type) -> Schema:
        properties: dict[str, Schema] = {}
        optional: set[str] = set()
        hints, explained = resolve(record), explain_fields(record)
        for field in dataclasses.fields(record):
            if not is_inlined(field):
                properties[output_name(field)] = self.describe(hints[field.name]) | explained.get(
                    field.name, {}
                )
                continue
            inner, may_lack = self._inline(hints[field.name])
            properties |= inner
            optional |= set(inner) if may_lack else set()
        schema: Schema = {"type": "object", "properties": properties}
        if required := [name for name in properties if name not in optional]:
            schema["required"] = required
        told = inspect.cleandoc(record.__doc__ or "")
        return (
            schema if told.startswith(f"{record.__name__}(") or not told else {"description": told, **schema}
        )

    def _inline(self, hint: Any) -> tuple[dict[str, Schema], bool]:
        """The fields that stand in the place of one, and whether they may all lack."""
        hint = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        if typing.get_origin(hint) is dict:
            key, value = typing.get_args(hint)
            return {str(member.value): self.describe(value) for member in key}, True
        kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not types.NoneType]
        return self.describe_record(kinds[0])["properties"], types.NoneType in typing.get_args(hint)

    def describe(self, hint: Any) -> Schema:  # noqa: C901, PLR0911, PLR0912 - one case a kind of type
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._describe_any(inner)
        if origin is typing.Annotated:
            return self.describe(inner[0])
        if origin is typing.Literal:
            return {"enum": list(inner)}
        if hint in (Any, object):
            return {}
        kind = origin or hint
        if kind is types.NoneType:
            return {"type": "null"}
        if issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if issubclass(kind, bool):
            return {"type": "boolean"}
        if issubclass(kind, int):
            return {"type": "integer"}
        if issubclass(kind, float):
            return {"type": ["number", "null"]}  # what is no number is null
        if issubclass(kind, TEXTS):
            return {"type": "string"}
        if issubclass(kind, Mapping):
            return {"type": "object", "additionalProperties": self.describe(inner[1]) if inner else {}}
        if issubclass(kind, (Sequence, AbstractSet)):
            return self._describe_list(inner)
        if dataclasses.is_dataclass(kind):
            return self.name(kind)
        if issubclass(kind, BaseModel):
            return self._describe_model(kind)
        return {"type": "string"}  # what JSON does not know is told as text

    def _describe_any(self, inner: tuple[Any, ...]) -> Schema:
        found = [self.describe(kind) for kind in inner]
        if all(list(schema) == ["type"] for schema in found):
            names = [
                name
                for schema in found
                for name in ([schema["type"]] if isinstance(schema["type"], str) else schema["type"])
            ]
            return {"type": list(dict.fromkeys(names))}
        return {"anyOf": found}

    def _describe_list(self, inner: tuple[Any, ...]) -> Schema:
        if not inner:
            return {"type": "array"}
        items = [self.describe(kind) for kind in inner if kind is not Ellipsis]
        if len(items) == 1:
            return {"type": "array", "items": items[0]}
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _describe_model(self, model: type[BaseModel]) -> Schema:
        schema = model.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
        self.definitions |= schema.pop("$defs", {})
        self.definitions[model.__name__] = schema
        return {"$ref": f"#/$defs/{model.__name__}"}


def explain_fields(record: type) -> dict[str, Schema]:
    """What stands under a field of a record of ours."""
    found: dict[str, Schema] = {}
    for kind in reversed(record.__mro__):
        if kind.__module__.startswith("oncehouse."):
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            assert isinstance(node, ast.ClassDef)
            for field, after in itertools.pairwise(node.body):
                match field, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(text))
                    ):
                        found[name] = {"description": inspect.cleandoc(text)}
    return found


def resolve(record: type) -> dict[str, Any]:
    """The types of a record's fields, those that its module knows by annotation alone included."""
    names: dict[str, Any] = {}
    for kind in reversed(record.__mro__):
        if module := sys.modules.get(kind.__module__):
            names |= vars(module) | import_for_annotations(module)
    return typing.get_type_hints(record, globalns=names, include_extras=True)


def import_for_annotations(module: types.ModuleType) -> dict[str, Any]:
    """What stands under `if TYPE_CHECKING:` in a module of ours."""
    found: dict[str, Any] = {}
    if not module.__name__.startswith("oncehouse"):
        return found
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__name__, "exec"), found)
    return found


def schema_of(answer: type[Answer], document: Schema) -> Schema:
    """A schema for documents of one record alone, with all definitions."""
    return {"$ref": f"#/$defs/{answer.__name__}", "$defs": document["$defs"]}


if __name__ == "__main__":
    FILE.write_text(write_schema(), encoding="utf-8")
    print(FILE)
