"""Renders the few constructs of Helm's templates that our chart keeps to, for machines without Helm.

Known are values by path, `toYaml`, `nindent`, `quote`, `printf`, `sha256sum`, `if`, `range` over a list, `gt`,
and `include` of another template by its path.
Anything else is refused, so that the chart cannot grow beyond what the tests render.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "oncehouse"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
_BASE = "oncehouse/templates"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "toYaml": lambda value: yaml.safe_dump(value, sort_keys=False).rstrip(),
    "printf": lambda text, *values: text % values,
    "print": lambda *texts: "".join(texts),
    "gt": operator.gt,
    "int": int,
}
_WORD = re.compile(r'"[^"]*"|\([^)]*\)|\S+')


def render_chart(**changed: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Every object of the chart by kind and name."""
    root = {
        "Values": VALUES | changed,
        "Release": {"Name": "shop", "Namespace": "events"},
        "Template": {"BasePath": _BASE},
    }
    texts = [render(file.read_text(), root) for file in sorted((CHART / "templates").glob("*.yaml"))]
    found = [document for text in texts for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def render(template: str, root: Mapping[str, Any]) -> str:
    """The text of one template for `{"Values": …, "Release": …}`."""
    pieces: list[tuple[str, str]] = []
    at = 0
    for tag in re.finditer(r"\{\{(-?)\s*(.*?)\s*\}\}", template, re.DOTALL):
        text = template[at : tag.start()]
        pieces.append(("text", text.rstrip() if tag[1] else text))
        pieces.append(("tag", tag[2]))
        at = tag.end()
    pieces.append(("text", template[at:]))
    out, end = _walk(pieces, 0, root, root)
    assert end == len(pieces), "an `end` too many"
    return out


def _walk(pieces: list[tuple[str, str]], at: int, root: Mapping[str, Any], dot: Any) -> tuple[str, int]:
    out = ""
    while at < len(pieces):
        kind, text = pieces[at]
        if kind == "text":
            out += text
        elif text == "end":
            return out, at
        elif text.startswith(("if ", "range ")):
            word, _, expression = text.partition(" ")
            value = _value(expression, root, dot)
            scopes = ([dot] if value else []) if word == "if" else value
            _, end = _walk(pieces, at + 1, root, dot if word == "if" else "")
            for scope in scopes:
                out += _walk(pieces, at + 1, root, scope)[0]
            at = end
            assert at < len(pieces), f"{text!r} has no end"
        else:
            out += str(_value(text, root, dot))
        at += 1
    return out, at


def _value(expression: str, root: Mapping[str, Any], dot: Any) -> Any:
    first, *filters = [part.strip() for part in expression.split("|")]
    value = _call(_WORD.findall(first), root, dot)
    for name in filters:
        word, *arguments = name.split()
        if word == "quote":
            value = json.dumps(str(value))
        elif word == "nindent":
            value = "\n" + "\n".join(" " * int(arguments[0]) + line for line in str(value).splitlines())
        elif word == "sha256sum":
            value = hashlib.sha256(str(value).encode()).hexdigest()
        else:
            raise AssertionError(f"{word!r} is not of the subset")
    return value


def _call(words: list[str], root: Mapping[str, Any], dot: Any) -> Any:
    name, *given = words
    arguments = [_single(word, root, dot) for word in given]
    if name == "include":
        path, scope = arguments
        assert scope is root, "a template is included with the whole of what this one has"
        return render((CHART / "templates" / path.removeprefix(f"{_BASE}/")).read_text(), root)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*arguments)
    assert not given, f"{name!r} is not of the subset"
    return _single(name, root, dot)


def _single(word: str, root: Mapping[str, Any], dot: Any) -> Any:
    if word.startswith("("):
        return _call(_WORD.findall(word[1:-1]), root, dot)
    if word.startswith('"'):
        return word[1:-1]
    if word == ".":
        return dot
    if word.startswith(("$.", ".")):
        word = word.removeprefix("$")
        found: Any = root
        for key in word[1:].split("."):
            assert key in found, f"{word} is not among the values"
            found = found[key]
        return found
    return int(word)
