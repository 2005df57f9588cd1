"""Reads a pipeline file: text to values with lines, references to secrets, paths, and every problem at once.

`${env:NAME}` and `${file:/path}` may stand anywhere in a text value (never in a key). What they stand for
is never shown: messages carry the reference in its place. Nothing is written and no server is asked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SecretStr, ValidationError

from oncehouse.common.formatting import format_bytes
from oncehouse.config.field_types import format_duration, format_size
from oncehouse.config.pipeline import Pipeline, SectionT
from oncehouse.config.problems import Path as KeyPath
from oncehouse.config.problems import Problem, dotted, explain, printable, shortened
from oncehouse.config.yaml_reader import MAX_FILE_BYTES, SECOND_PLACE, Document, UnreadableError, read_yaml
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA_FILE_NAME = "pipeline.schema.json"

Change = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the values of a file as they stand in it, references and all, and gives others."""

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_REFERENCE_PATTERN = r"\$\{(?:env|file):[^}]+\}"
_LONGEST_PATH = 4096
_MAX_SECRET_BYTES = 64 << 10

EACH = "*"
"""Stands in a path for every key of a mapping, and every item of a list."""

PlaceKind = Literal["folder", "sqlite"]
"""How a relative path of a file is read: as a path, or as the path inside a SQLite URL."""
_PIPELINE_PATHS: tuple[tuple[tuple[str, ...], PlaceKind], ...] = (
    (("ledger", "files"), "folder"),
    (("ledger", "catalog"), "sqlite"),
    (("clickhouse", "ca_file"), "folder"),
    (("source", "avro", "schemas", EACH), "folder"),
    (("source", "avro", "registry", "ca_file"), "folder"),
    (("source", "protobuf", "include", EACH), "folder"),
    (("source", "protobuf", "schemas", EACH, "files", EACH), "folder"),
    (("source", "protobuf", "schemas", EACH, "descriptor_set"), "folder"),
    (("source", "protobuf", "envelope", "files", EACH), "folder"),
    (("source", "protobuf", "envelope", "descriptor_set"), "folder"),
    (("source", "protobuf", "registry", "ca_file"), "folder"),
    (("shape", "lookups", EACH, "file"), "folder"),
    (("shape", "function", "file"), "folder"),
    (("spark", "environment"), "folder"),
)


def load_pipeline(path: str | os.PathLike[str], change: Change | None = None) -> Pipeline:
    """The pipeline that a file declares, or a ConfigurationError that lists everything wrong with it.

    `change` may put other values in the place of the file's own before anything of them is looked at.
    """
    file = Path(path)
    text = read_text(file, absent="`oncehouse init {file}` writes an example")
    return parse_pipeline(text, str(file), folder=file.absolute().parent, change=change)


def read_document(path: str | os.PathLike[str], change: Change) -> dict[str, Any]:
    """The changed values of a file that `load_pipeline` takes, to be written to another folder: paths and files of
    references are absolute, other references stay as they are.
    """
    file = Path(path)
    folder = file.absolute().parent
    value = change(read_yaml(read_text(file, absent="")).value)
    return _place_paths(_place_references(value, folder), folder, _PIPELINE_PATHS)


def _place_references(value: Any, folder: Path) -> Any:
    match value:
        case dict():
            return {key: _place_references(inner, folder) for key, inner in value.items()}
        case list():
            return [_place_references(inner, folder) for inner in value]
        case str():
            return _REFERENCE.sub(lambda found: _place_reference(found[0], folder), value)
        case _:
            return value


def _place_reference(reference: str, folder: Path) -> str:
    kind, _, name = reference[2:-1].partition(":")
    return f"${{file:{folder / name}}}" if kind == "file" else reference


def read_text(file: Path, *, absent: str) -> str:
    """The text of a file of settings; `absent` is the advice when there is none, `{file}` its name."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        # Who started a command in another folder sees it by the folder's name.
        where = "" if file.is_absolute() else f" in {file.absolute().parent}"
        raise ConfigurationError(
            f"{file}: no such file{where}; {absent.replace('{file}', str(file))}"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(raw) <= MAX_FILE_BYTES:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ConfigurationError(f"{file}:{line}: is not UTF-8 text; save the file as UTF-8") from None
        return raw.decode("utf-8-sig", "replace")


def parse_pipeline(
    text: str,
    name: str,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    change: Change | None = None,
) -> Pipeline:
    """As `load_pipeline`, from text; `name` stands in messages, relative paths are read from `folder`."""
    return parse_section(
        text,
        name,
        section=Pipeline,
        example="pipeline: events",
        folder=folder,
        environment=environment,
        paths=_PIPELINE_PATHS,
        change=change,
    )


def parse_section(
    text: str,
    name: str,
    *,
    section: type[SectionT],
    example: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    paths: Sequence[tuple[tuple[str, ...], PlaceKind]] = (),
    change: Change | None = None,
) -> SectionT:
    """One file as one section, with the lines of everything wrong in it; `example` shows what a key looks like."""
    try:
        document = read_yaml(text, example=example)
    except UnreadableError as error:
        line, reason = error.args
        raise ConfigurationError(f"{name}:{line}: {reason}") from None
    references = _References(
        environment=os.environ if environment is None else environment, folder=folder or Path()
    )
    changed = change(document.value) if change and isinstance(document.value, dict) else document.value
    value = references.resolve(changed, ())
    problems = [*document.problems, *references.problems]
    made: SectionT | None = None
    if not isinstance(value, dict):
        problems.append(Problem(path=(), text=f"must be keys and values, such as `{example}`"))
    else:
        try:
            made = section.model_validate(_place_paths(value, folder, paths))
        except ValidationError as error:
            known = {problem.path for problem in problems}
            problems += [problem for problem in explain(error, section=section) if problem.path not in known]
    if made is None or problems:
        raise ConfigurationError(
            format_with_lines([references.hide(problem) for problem in problems], name, document)
        )
    return made


def format_with_lines(problems: list[Problem], name: str, document: Document) -> str:
    """One line a problem, in the order of the file, in the form that editors and terminals make links of."""
    lines = sorted(
        {
            (document.line(problem.path), dotted(_shown(problem.path)), shortened(problem.text))
            for problem in problems
        }
    )
    return "\n".join(f"{name}:{line}: {key + ': ' if key else ''}{text}" for line, key, text in lines)


def _shown(path: KeyPath) -> KeyPath:
    return path[:-1] if path and path[-1] == SECOND_PLACE else path


@dataclass(kw_only=True)
class _References:
    """Replaces references by what they stand for and remembers it, so that no message shows it."""

    environment: Mapping[str, str]
    folder: Path
    problems: list[Problem] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    """What a reference stands for, and the text to show in its place."""
    places: set[KeyPath] = field(default_factory=set)

    def resolve(self, value: Any, path: KeyPath) -> Any:
        match value:
            case dict():
                return {key: self.resolve(inner, (*path, key)) for key, inner in value.items()}
            case list():
                return [self.resolve(inner, (*path, at)) for at, inner in enumerate(value)]
            case str() if "${" in value:
                return self._replace(value, path)
            case _:
                return value

    def _replace(self, text: str, path: KeyPath) -> Any:
        try:
            resolved = _REFERENCE.sub(self._resolve_reference, text)
        except ValueError as error:
            self.problems.append(Problem(path=path, text=str(error)))
            # Takes the value's place, so that a missing secret is not also reported as a wrong value.
            return text
        if resolved:
            self.secrets.setdefault(resolved, text)
        self.places.add(path)
        # A client's setting has no type that hides it, so whatever came by reference is hidden.
        return SecretStr(resolved) if path[:3] == ("source", "kafka", "options") else resolved

    def _resolve_reference(self, reference: re.Match[str]) -> str:
        kind, _, name = reference[1].partition(":")
        match kind:
            case "env" if name:
                found = self._variable(name)
            case "file" if name:
                found = self._file(name)
            case _:
                raise ValueError(
                    f"{printable(reference[0])} is no reference; write ${{env:NAME}} or ${{file:/path}}"
                )
        if found:
            self.secrets.setdefault(found, reference[0])
        return found

    def _variable(self, name: str) -> str:
        if name not in self.environment:
            raise ValueError(
                f"the environment variable {printable(name)} is not set; export it before the start"
            )
        return self.environment[name]

    def _file(self, name: str) -> str:
        path = self.folder / name
        # Whole: its end says which file is meant.
        shown = printable(str(path), longest=_LONGEST_PATH)
        try:
            with path.open("rb") as stream:
                raw = stream.read(_MAX_SECRET_BYTES + 1)
            if len(raw) > _MAX_SECRET_BYTES:
                raise ValueError(f"the file {shown} is larger than {format_bytes(_MAX_SECRET_BYTES)}")
            return raw.decode().rstrip("\r\n")
        except OSError as error:
            raise ValueError(f"the file {shown} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"the file {shown} is not UTF-8 text") from None

    def hide(self, problem: Problem) -> Problem:
        """Longest first, so that a secret inside another one does not leave the other's rest behind."""
        text = problem.text
        for secret in sorted(self.secrets, key=len, reverse=True):
            forms = {secret, repr(secret)[1:-1], ascii(secret)[1:-1]}
            # A short value is a part of many words; it is only looked for where it was put.
            if len(secret) >= 4 or problem.path in self.places:
                for form in forms:
                    text = text.replace(form, self.secrets[secret])
        return replace(problem, text=text)


def _place_paths(
    value: dict[str, Any], folder: Path | None, paths: Sequence[tuple[tuple[str, ...], PlaceKind]]
) -> dict[str, Any]:
    """Paths as the file means them: from its own folder, wherever the command was started."""
    if folder is None:
        return value
    for path, kind in paths:
        value = _place_path(value, path, _place_sqlite if kind == "sqlite" else _place_folder, folder)
    return value


def _place_path(
    holder: dict[str, Any], path: tuple[str, ...], place: Callable[[str, Path], str], folder: Path
) -> dict[str, Any]:
    key, *rest = path
    if key == EACH:
        for each in holder:
            holder = _place_path(holder, (each, *rest), place, folder)
        return holder
    match holder.get(key):
        case list() as several if rest == [EACH]:
            placed = [place(text, folder) if isinstance(text, str) else text for text in several]
            return {**holder, key: placed}
        case dict() as inner if rest:
            return {**holder, key: _place_path(inner, tuple(rest), place, folder)}
        case str() as text if not rest:
            return {**holder, key: place(text, folder)}
        case _:
            return holder


def _place_folder(text: str, folder: Path) -> str:
    return text if not text or "://" in text else str(folder / Path(text).expanduser())


def _place_sqlite(url: str, folder: Path) -> str:
    scheme, marker, rest = url.partition(":///")
    path, question, query = rest.partition("?")
    if (
        not marker
        or scheme.partition("+")[0] != "sqlite"
        or not path
        or path.startswith((":memory:", "file:"))
    ):
        return url
    return f"{scheme}:///{folder / Path(path).expanduser()}{question}{query}"


def example_text() -> str:
    """The commented pipeline file that `oncehouse init` writes; it loads as it is."""
    return resources.files("oncehouse").joinpath("example_pipeline.yaml").read_text(encoding="utf-8")


def json_schema() -> dict[str, Any]:
    """JSON Schema of the pipeline file, for editors to complete and explain keys."""
    schema = Pipeline.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        section.pop("title", None)
        for key in section.get("properties", {}).values():
            _polish_key(key)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "oncehouse pipeline file",
        **schema,
    }


def json_schema_text() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _polish_key(key: dict[str, Any]) -> None:
    """Defaults as people write them, and references wherever a number or a switch may stand."""
    key.pop("title", None)
    patterns = {choice.get("pattern") for choice in key.get("anyOf", ())}
    if isinstance(key.get("default"), dict):
        # The section's own keys carry their defaults.
        del key["default"]
    if any(pattern and "ms|s|m" in pattern for pattern in patterns):
        key["default"] = format_duration(key["default"])
    if key.get("default") is not None and any(pattern and "[Kk" in pattern for pattern in patterns):
        key["default"] = format_size(key["default"])
    if key.get("type") in {"integer", "number", "boolean"}:
        kept = {name: key.pop(name) for name in list(key) if name not in {"description", "default"}}
        key["anyOf"] = [kept, {"type": "string", "pattern": _REFERENCE_PATTERN}]
    for holder in (key, key.get("items", {}), *key.get("anyOf", ())):
        if holder.get("pattern", _REFERENCE_PATTERN) != _REFERENCE_PATTERN:
            holder["pattern"] = f"{holder['pattern']}|{_REFERENCE_PATTERN}"
