"""An Avro schema and those it refers to, made into one text that needs no other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.formats.avro.schema import PRIMITIVES


def inline_references(text: str, references: Iterable[tuple[str, str]], *, where: str) -> str:
    """The schema with each referred type written out where it first stands."""
    known = {}
    for name, definition in references:
        known[name] = _load(definition, f"{where}, which refers to {name}")
    return json.dumps(_Inlining(known).walk(_load(text, where), "")) if known else text


def _load(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{where}: the Avro schema is not JSON; register it again") from None


class _Inlining:
    def __init__(self, known: dict[str, Any]) -> None:
        self._open = dict(known)

    def walk(self, document: Any, namespace: str) -> Any:  # noqa: PLR0911 - one case a kind
        match document:
            case str():
                return self._write_out(document, namespace)
            case list():
                return [self.walk(branch, namespace) for branch in document]
            case {"type": "array", "items": items}:
                return {**document, "items": self.walk(items, namespace)}
            case {"type": "map", "values": values}:
                return {**document, "values": self.walk(values, namespace)}
            case {"fields": list(fields)}:
                inside = self._namespace(document, namespace)
                return {**document, "fields": [self._walk_field(field, inside) for field in fields]}
            case {"type": dict() | list() as inner}:
                return {**document, "type": self.walk(inner, namespace)}
            case _:
                return document

    def _walk_field(self, field: Any, namespace: str) -> Any:
        if not isinstance(field, dict) or "type" not in field:
            return field
        return {**field, "type": self.walk(field["type"], namespace)}

    def _write_out(self, name: str, namespace: str) -> Any:
        for full in (f"{namespace}.{name}", name):
            if name not in PRIMITIVES and full in self._open:
                definition = self._open.pop(full)
                if isinstance(definition, dict) and "." not in str(definition.get("name")):
                    # Left open it would mean the namespace around it.
                    definition = {"namespace": "", **definition}
                return self.walk(definition, "")
        return name

    def _namespace(self, document: dict[str, Any], namespace: str) -> str:
        name, own = str(document.get("name", "")), document.get("namespace", namespace)
        return name.rpartition(".")[0] if "." in name else str(own)
