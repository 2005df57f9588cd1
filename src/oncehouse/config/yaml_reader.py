"""YAML as plain values that remember their lines, read with suspicion.

Only what a pipeline file needs: mappings with text keys, lists, text, whole numbers, decimals, true, false
and null, as YAML 1.2 writes them (`yes`, `no`, `on` and dates stay text). Duplicate keys, tags, anchors,
several documents, deep nesting and large files are refused, each with its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from oncehouse.common.formatting import format_bytes
from oncehouse.config.problems import Path, Problem, printable

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32
SECOND_PLACE = -1
"""Last step of the path of a key that stands a second time; no list has such an index."""

_CORE = "tag:yaml.org,2002:"
_WHOLE = r"[-+]?(?:0|[1-9][0-9_]{0,30})"
_DECIMAL = r"[-+]?[0-9][0-9_]{0,30}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?"


class UnreadableError(Exception):
    """The text is no YAML that can be looked at any further: line and reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    value: Any
    """Dictionaries, lists and scalars."""
    lines: dict[Path, int]
    """Line of each key and list item, counted from 1."""
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """Line of the nearest thing on the way to `path` that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Loader(yaml.SafeLoader):
    """SafeLoader's scanner and parser; composes without aliases and resolves only the types named above."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way of declaring them
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise UnreadableError(line, "anchors (&) and aliases (*) are not supported; write the value out")
        if self.depth >= MAX_DEPTH:
            raise UnreadableError(line, f"nested deeper than {MAX_DEPTH} levels")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", _WHOLE, "-+0123456789"),
    ("float", _DECIMAL, "-+0123456789"),
):
    _Loader.add_implicit_resolver(_CORE + _tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


def read_yaml(text: str, *, example: str = "key: value") -> Document:
    """Values and lines of one document. Raises UnreadableError when there is nothing to look at."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
        raise UnreadableError(1, f"larger than {format_bytes(MAX_FILE_BYTES)}; this is no pipeline file")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UnreadableError(line, "holds a character that YAML does not allow") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UnreadableError(mark.line + 1 if mark else 1, _yaml_advice(error)) from None
    if node is None:
        raise UnreadableError(1, f"is empty; write keys and values into it, such as `{example}`")
    document = Document(value=None, lines={}, problems=[])
    return Document(value=_build(node, (), document), lines=document.lines, problems=document.problems)


def _yaml_advice(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be read"
    if "'\\t'" in problem:
        return "a tab cannot indent YAML; use spaces"
    if "but found another document" in problem:
        return "holds more than one document; keep one pipeline a file"
    return f"is not valid YAML: {problem}"


def _build(node: yaml.Node, path: Path, document: Document) -> Any:
    document.lines.setdefault(path, node.start_mark.line + 1)
    match node:
        case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
            return _build_mapping(node, path, document)
        case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
            return [_build(item, (*path, at), document) for at, item in enumerate(node.value)]
        case yaml.ScalarNode() if (value := _scalar(node)) is not NotImplemented:
            return value
        case _:
            document.problems.append(
                Problem(path=path, text=f"the tag {printable(node.tag)} is not supported; remove it")
            )
            return None


def _build_mapping(node: yaml.MappingNode, path: Path, document: Document) -> dict[str, Any]:
    built: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode):
            document.problems.append(Problem(path=path, text="a key must be text, not a list or section"))
            continue
        inner = (*path, key)
        if key in built:
            first = document.lines[inner]
            # Its own path, so that the problem is shown at the second place, which no other path leads to.
            second_place = (*path, key, SECOND_PLACE)
            document.lines[second_place] = key_node.start_mark.line + 1
            document.problems.append(
                Problem(path=second_place, text=f"stands here twice; first in line {first}")
            )
            continue
        document.lines[inner] = key_node.start_mark.line + 1
        built[key] = _build(value_node, inner, document)
    return built


def _scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar; NotImplemented for a tag that is unknown or does not fit its text."""
    text: str = node.value
    match node.tag.removeprefix(_CORE):
        case "str":
            return text
        case "bool" if text.lower() in {"true", "false"}:
            return text.lower() == "true"
        case "null" if text.lower() in {"", "~", "null"}:
            return None
        case "int" if re.fullmatch(_WHOLE, text):
            return int(text.replace("_", ""))
        case "float" if re.fullmatch(_DECIMAL, text):
            return float(text.replace("_", ""))
        case _:
            return NotImplemented
