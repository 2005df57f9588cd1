"""Templates of the user's own: a file of SQL with Jinja in it becomes the statements around a run and the rows of it.

Jinja runs in its sandbox, strictly. Whatever `{{ … }}` yields is bound as a parameter of ClickHouse; names come out as
names only through the filters `identifier` and `table`. The one SELECT of the file yields the rows. How they go in
(positions, token, one block) is never the template's part, so what a template says cannot cost a row.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes, sandbox

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.config.file_loader import read_text
from oncehouse.errors import ConfigurationError, OncehouseError
from oncehouse.etl.lineage.sql_text import SqlStatement, UnclosedError, split_statements
from oncehouse.etl.lineage.topic import Topic

RANGE_PARAMETERS = {
    "last_time": "DateTime64(3)",
    "last_id": "UInt64",
    "next_time": "DateTime64(3)",
    "next_id": "UInt64",
}
_YIELDS_ROWS = re.compile(r"(SELECT|WITH|FROM)\b|\(", re.IGNORECASE)
_INSERT_INTO = re.compile(r"INSERT\s+INTO\s+(?:TABLE\s+)?([^\s(]+)", re.IGNORECASE)
# What these put together is text to Jinja: it would look like a value. Other files would not be read.
_REFUSED = {
    nodes.Macro: "macro",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter",
    nodes.AssignBlock: "set … endset",
    nodes.Block: "block",
    nodes.Extends: "extends",
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from … import",
}
_UNREPEATABLE = ("random",)


@dataclass(frozen=True, kw_only=True)
class Rendered:
    before: tuple[str, ...]
    select: str
    """The one statement that yields rows."""
    after: tuple[str, ...]
    bound: Mapping[str, Any]
    """Parameter and value."""


class Sql(str):
    """Text that stands in a statement as it is."""

    __slots__ = ()


@dataclass(kw_only=True)
class _Binder:
    """Puts a parameter where a value was, and remembers the value."""

    values: dict[str, Any] = field(default_factory=dict)

    def emit(self, value: object) -> str:
        if isinstance(value, Sql):
            return str(value)
        if isinstance(value, jinja2.Undefined):
            return str(value)  # raises, and names what is missing
        type_ = _type_of(value)
        name = next(
            (name for name, one in self.values.items() if _is_same(one, value)), f"value_{len(self.values)}"
        )
        self.values[name] = value
        return f"{{{name}:{type_}}}"


def _is_same(one: object, other: object) -> bool:
    """Equal and of one type: 1, 1.0 and True are three values to ClickHouse."""
    return type(one) is type(other) and repr(one) == repr(other)


def check_template(topic: Topic, path: Path) -> None:
    """Fill the template in without a server; a ConfigurationError says what is wrong with it, and in which line."""
    stand_in = Sql("(SELECT 1)") if topic.transform is not None else None
    render_template(topic, path, transform=stand_in)


def render_template(topic: Topic, path: Path, *, transform: Sql | None) -> Rendered:
    """The template's statements for a topic. `transform` stands for its transform, after FROM."""
    text = read_text(path, absent="name a file next to the lineage file as `template`")
    binder = _Binder()
    try:
        filled = _compile(text, path, binder).render(_context(topic, transform))
    except jinja2.TemplateSyntaxError as error:
        raise _refuse(path, error.lineno, error.message or "cannot be read") from None
    except (
        jinja2.TemplateError,
        OncehouseError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
    ) as error:
        raise _refuse(path, _line_of(error, path), _word(error)) from None
    try:
        statements = split_statements(filled)
    except UnclosedError as error:
        raise _refuse(path, error.line, str(error)) from None
    return _sort_statements(statements, topic, path, binder.values)


def _compile(text: str, path: Path, binder: _Binder) -> jinja2.Template:
    environment = sandbox.ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        finalize=binder.emit,
        keep_trailing_newline=True,
        loader=jinja2.FunctionLoader(lambda _name: (text, str(path), lambda: True)),
    )
    environment.globals.clear()
    environment.globals["range"] = sandbox.safe_range
    environment.filters.update(identifier=_identifier, table=_table)
    for name in _UNREPEATABLE:
        del environment.filters[name]  # a range that runs again must say the same
    for node in environment.parse(text, filename=str(path)).find_all(tuple(_REFUSED)):
        what = _REFUSED[type(node)]
        raise jinja2.TemplateSyntaxError(f"`{what}` is not available in a template", node.lineno)
    return environment.get_template(path.name)


def _context(topic: Topic, transform: Sql | None) -> dict[str, Any]:
    context: dict[str, Any] = {
        "topic": topic.topic,
        "dst": topic.dst,
        "source": topic.depends_on[0] if topic.depends_on else None,
        "depends_on": topic.depends_on,
        "parameters": dict(topic.parameters),
        "in_range": in_range,
        **{name: Sql(f"{{{name}:{type_}}}") for name, type_ in RANGE_PARAMETERS.items()},
    }
    return context if transform is None else {**context, "transform": transform}


def in_range(alias: str = "") -> Sql:
    """The condition on `pos` and `id` of the rows of a run: first what serves the primary key, then what is exact."""
    of = f"{quote(alias)}." if alias else ""
    last, next_ = (f"({{{one}_time:DateTime64(3)}}, {{{one}_id:UInt64}})" for one in ("last", "next"))
    place = f"(toDateTime64({of}pos, 3), {of}id)"
    return Sql(
        f"{of}pos >= {{last_time:DateTime64(3)}} AND {of}pos < addMilliseconds({{next_time:DateTime64(3)}}, 1) "
        f"AND {place} > {last} AND {place} <= {next_}"
    )


def _identifier(value: object) -> Sql:
    return _each(value, quote, "identifier")


def _table(value: object) -> Sql:
    return _each(value, quote_table, "table")


def _each(value: object, quoted: Callable[[str], str], what: str) -> Sql:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, tuple | list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"the filter `{what}` takes a name or a list of names")
    return Sql(", ".join(quoted(name) for name in names))


def _type_of(value: object) -> str:
    match value:
        case bool():
            return "Bool"
        case int():
            return "Int64" if -(1 << 63) <= value < 1 << 63 else "Int256"
        case float():
            return "Float64"
        case str():
            return "String"
        case tuple() | list() if value:
            kinds = {_type_of(one) for one in value}
            if len(kinds) == 1:
                return f"Array({kinds.pop()})"
            if kinds <= {"Int64", "Float64"}:
                return "Array(Float64)"
    raise ValueError(f"{type(value).__name__} cannot be bound; texts, numbers and lists of one of them can")


def _sort_statements(
    statements: tuple[SqlStatement, ...], topic: Topic, path: Path, bound: Mapping[str, Any]
) -> Rendered:
    places = [at for at, one in enumerate(statements) if _YIELDS_ROWS.match(one.words)]
    if len(places) != 1:
        line = statements[places[1]].line if places else 1
        problem = (
            "a second SELECT; exactly one statement yields the rows"
            if places
            else "no SELECT that yields the rows"
        )
        raise _refuse(path, line, problem)
    at = places[0]
    for one in (*statements[:at], *statements[at + 1 :]):
        into = _INSERT_INTO.match(one.words)
        if into and into[1].replace("`", "").replace('"', "") == topic.dst:
            raise _refuse(
                path, one.line, f"rows go into {topic.dst} by the SELECT alone; leave the INSERT out"
            )
    return Rendered(
        before=tuple(one.text for one in statements[:at]),
        select=statements[at].text,
        after=tuple(one.text for one in statements[at + 1 :]),
        bound=bound,
    )


def _line_of(error: Exception, path: Path) -> int:
    """Jinja lets tracebacks point into the template's own lines."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path) and frame.lineno]
    return lines[-1] if lines else 1


def _word(error: Exception) -> str:
    text = str(error).replace("'dict object' has no attribute", "parameters have no")
    if isinstance(error, jinja2.UndefinedError) and "is undefined" in text:
        return f"{text}; a template knows {', '.join(_NAMES)}, and transform where the topic names one"
    return text


_NAMES = ("topic", "dst", "source", "depends_on", "parameters", "in_range()", *RANGE_PARAMETERS)


def _refuse(path: Path, line: int, text: str) -> ConfigurationError:
    return ConfigurationError(f"{path}:{line}: {text}")
