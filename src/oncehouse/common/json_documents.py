"""What commands print with `--json`: each document is a frozen record that names the commands which print it.

`tools/cli_schema.py` writes the published schema from these records, so the fields are written once. A record
may hold values of any room; those whose modules are heavy are named in annotations alone.
"""

from __future__ import annotations

from dataclasses import Field, dataclass
from typing import Annotated, Any, TypeVar

Value = TypeVar("Value")
Inlined = Annotated[Value, "inlined"]
"""A field whose own fields, or keys, stand in its place."""

ANSWERS: dict[str, list[type[Answer]]] = {}
"""The documents of each command, by its words without `oncehouse`."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A document. Commands that report events print several, one a line."""

    def __init_subclass__(cls, *, of: tuple[str, ...], **more: Any) -> None:
        super().__init_subclass__(**more)
        for command in of:
            ANSWERS.setdefault(command, []).append(cls)


def output_name(field: Field[Any]) -> str:
    """A field's key in the document: its own name, or another one for keys that are older than the name."""
    return str(field.metadata.get("output", field.name))


def is_inlined(field: Field[Any]) -> bool:
    return str(field.type).startswith("Inlined[")
