"""What is wrong with a pipeline, in words: pydantic's findings become advice with the nearest right word.

Pure: a problem is a path of keys and a text. Values are never shown unless a check of ours put them into
its text on purpose, because a value may be a secret; lines are added where the file is known.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from oncehouse.common.formatting import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]

_MISSING = "is missing"
_EMPTY = "must not be empty"

# Words that other tools use for what has a name of its own here, too far from it for difflib.
_OTHER_WORDS = {
    "brokers": "bootstrap_servers",
    "broker": "bootstrap_servers",
    "columns_map": "columns",
    "database": "url",
    "dedup": "identity",
    "deduplicate": "identity",
    "deduplication": "identity",
    "destination": "tables",
    "destinations": "tables",
    "dlq": "dead_letters",
    "endpoint": "url",
    "folder": "files",
    "host": "url",
    "id": "identity",
    "interval": "min_interval",
    "key": "identity",
    "keys": "identity",
    "partitions": "buckets",
    "schema": "fields",
    "shards": "buckets",
    "sink": "tables",
    "ttl": "window",
    "username": "user",
}


_LONGEST_TEXT = 800


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    path: Path
    text: str
    meant: str | None = None
    """For an unknown key: the key that was probably meant."""


def dotted(path: Path) -> str:
    """`tables[0].route.field`, as messages and docs write a key."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{printable(step)}" if text else printable(step)
    return text


def printable(text: str, *, longest: int = 80) -> str:
    """A name or path from outside, in a message: nothing invisible, and of bounded length."""
    return escape_unprintable(text, longest=longest)


def nearest(word: str, words: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return found[0] if found else None


def format_problems(problems: Sequence[Problem], *, where: str) -> str:
    """One line a problem, for a pipeline that was built in Python."""
    return "\n".join(
        f"{where}: {dotted(problem.path)}: {shortened(problem.text)}".replace(": : ", ": ")
        for problem in problems
    )


def shortened(text: str) -> str:
    """A message without the middle of what a user wrote into it; the advice stands at its end."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 300]} … {text[-250:]}"


def combine_problems(
    failure: ValidationError | None, found: Iterable[Problem], *, title: str
) -> ValidationError:
    """pydantic's findings and ours as one error, so that they are reported together."""
    details = [] if failure is None else [_make_details(error) for error in failure.errors(include_url=False)]
    details += [
        InitErrorDetails(
            type=PydanticCustomError("contradiction", "{text}", {"text": problem.text}),
            loc=problem.path,
            input=None,
        )
        for problem in found
    ]
    return ValidationError.from_exception_data(title, details, hide_input=True)


def _make_details(error: ErrorDetails) -> InitErrorDetails:
    kind = error["type"]
    if kind == "contradiction":
        return InitErrorDetails(
            type=PydanticCustomError("contradiction", "{text}", {"text": error["msg"]}),
            loc=error["loc"],
            input=None,
        )
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))


def explain(failure: ValidationError, *, section: type) -> list[Problem]:
    """Every finding as a problem. A key that is missing only because it is misspelt is reported once."""
    problems = [_explain(error, section) for error in failure.errors(include_url=False)]
    meant = {(*problem.path[:-1], problem.meant) for problem in problems if problem.meant is not None}
    holders = {problem.path[:depth] for problem in problems for depth in range(len(problem.path))}
    return [
        problem
        for problem in problems
        if not (problem.text == _MISSING and problem.path in meant)
        # A list whose only item is wrong counts as empty for pydantic.
        and not (problem.text == _EMPTY and problem.path in holders)
    ]


def _explain(error: ErrorDetails, root: type) -> Problem:
    path: Path = tuple(step for step in error["loc"] if step != "[key]")
    match error["type"]:
        case "extra_forbidden":
            return _unknown_key(path, root)
        case "model_type" | "model_attributes_type" | "dict_type":
            return Problem(path=path, text=_must_be_section(path, root, error["input"]))
        case _:
            return Problem(path=path, text=_word_value(error))


def _word_value(error: ErrorDetails) -> str:
    kind = _kind(error["input"])
    texts = {
        "missing": _MISSING,
        "tuple_type": f"must be a list, such as [a, b], not {kind}",
        "string_type": f"must be text, not {kind}; put quotes around it",
        "too_short": _EMPTY,
        "string_too_short": _EMPTY,
        "string_pattern_mismatch": "must be lowercase letters, digits, '_' and '-', a letter first, at most 63",
        "literal_error": f"must be {error.get('ctx', {}).get('expected')}",
        "value_error": str(error.get("ctx", {}).get("error")),
    }
    return texts.get(error["type"], error["msg"].replace("Input should be", "must be"))


def _kind(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a section"
        case _:
            return "a list"


def _must_be_section(path: Path, root: type, value: object) -> str:
    if value is None:
        return "is empty; write its keys under it"
    section = section_at(root, path)
    keys = f" with keys such as {', '.join(list(section.model_fields)[:3])}" if section else ""
    return f"must be a section{keys}, not {_kind(value)}"


def _unknown_key(path: Path, root: type) -> Problem:
    """First the exact word where it belongs, then a near word here, then a near word elsewhere."""
    word, holder = str(path[-1]), section_at(root, path[:-1])
    here = list(holder.model_fields) if holder else []
    places = _places(root, ())
    other = _OTHER_WORDS.get(word.lower())
    if word in places:
        return Problem(path=path, text=f"unknown key; it belongs to {_either(places[word])}")
    meant = other if other in here else nearest(word, here)
    if meant is not None:
        return Problem(path=path, text=f'unknown key; did you mean "{meant}"?', meant=meant)
    elsewhere = other if other in places else nearest(word, places)
    if elsewhere is not None:
        return Problem(
            path=path,
            text=f'unknown key; did you mean "{elsewhere}"? That belongs to {_either(places[elsewhere])}',
        )
    return Problem(path=path, text=f"unknown key; known here: {', '.join(here)}")


def _places(root: type, path: tuple[str, ...]) -> dict[str, list[str]]:
    """Each key and the dotted names of the sections that hold it, the higher places first."""
    places: dict[str, list[str]] = {}
    if not issubclass(root, BaseModel):
        return places
    for name in root.model_fields:
        places.setdefault(name, []).append(".".join(path) or "the top of the file")
    for name, field in root.model_fields.items():
        inner = _section_in(field.annotation)
        for word, holders in _places(inner, (*path, name)).items() if inner else ():
            places.setdefault(word, []).extend(holders)
    return places


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def section_at(root: type, path: Path) -> type[BaseModel] | None:
    """The section that a path leads to; None when it leads to a value or nowhere."""
    section: type[BaseModel] | None = root if issubclass(root, BaseModel) else None
    for step in path:
        if isinstance(step, int) or section is None:
            continue
        field = section.model_fields.get(step)
        section = None if field is None else _section_in(field.annotation)
    return section


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section_in(inner))), None)
