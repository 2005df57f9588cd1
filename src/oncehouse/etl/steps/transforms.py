"""Transforms: where a topic's rows come from, and how its range reaches them.

Four kinds: a view that reads `last` and `next` of its topic from the offsets table; a parameterized view; the
text of an SQL file; a template of the user's own. The latter three name what they need as {last_time:DateTime64(3)},
{last_id:UInt64}, {next_time:DateTime64(3)} and {next_id:UInt64}. Values are always bound, never written into the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.identifiers import quote, quote_table, split_table
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.sql_text import UnclosedError, split_statements
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.lineage.user_templates import RANGE_PARAMETERS, Sql, render_template
from oncehouse.etl.state.position import START, Position

_PARAMETER = re.compile(r"\{\s*(\w+)\s*:")


@dataclass(frozen=True, kw_only=True)
class Transform:
    name: str
    select: str
    """A SELECT without a closing semicolon."""
    offsets_table: str | None
    """It takes its range from this table, so it sees a range only once `next` is written; None: bound values."""
    has_range: bool
    """It asks for a range at all; a Reload need not."""
    before: tuple[str, ...] = ()
    """Statements of a template that stand before the one that yields its rows."""
    after: tuple[str, ...] = ()
    bound: Mapping[str, Any] = field(default_factory=dict)
    """Values of a template, by parameter."""
    guard_table: str | None = None
    """The offsets on the same server, in which an insert looks whether its range is still the topic's."""


def transform_name(topic: Topic) -> str | None:
    """None: the topic's own template says all."""
    if topic.transform is None and topic.template_file is not None:
        return None
    return topic.transform or f"ETL.{topic.topic}Transform"


def find_transform(client: Client, topic: Topic, folder: Path, offsets_table: str | None) -> Transform:
    """The topic's view, SQL file or own template; refused when it is missing or asks for what no step has.

    `offsets_table` is where a view without parameters finds its range.
    """
    name = transform_name(topic)
    inner = _find_named(client, topic, name, folder, offsets_table) if name is not None else None
    if topic.template_file is not None:
        found = _from_template(topic, folder / topic.template_file, inner)
    elif inner is not None:
        found = inner
    else:
        raise AssertionError(f"{topic.topic} has neither a transform nor a template")
    return replace(found, guard_table=offsets_table)


def _find_named(
    client: Client, topic: Topic, name: str, folder: Path, offsets_table: str | None
) -> Transform:
    if name.endswith(".sql"):
        return _from_file(topic, name, folder)
    view = split_table(name)
    found = client.query(
        "SELECT engine, arrayMap(p -> p.1, parameterized_view_parameters) FROM system.tables "
        "WHERE database = {database:String} AND name = {name:String}",
        {"database": view.database or client.database, "name": view.table},
    )
    if not found:
        raise ConfigurationError(
            f"Topic {topic.topic}: its transform {name} is neither a view on {client.address} nor a file ending in "
            ".sql. Create the view, or name another one as `transform` in the lineage."
        )
    parameters = tuple(found[0][1])
    _check_parameters(topic, name, parameters)
    if not parameters:
        select = f"SELECT * FROM {view.quoted}"  # noqa: S608 - quoted
        return Transform(name=name, select=select, offsets_table=offsets_table, has_range=False)
    arguments = ", ".join(f"{quote(one)} = {{{one}:{RANGE_PARAMETERS[one]}}}" for one in parameters)
    select = f"SELECT * FROM {view.quoted}({arguments})"  # noqa: S608 - quoted, and the names are known ones
    return Transform(name=name, select=select, offsets_table=None, has_range=True)


def bind(last: Position, next_: Position) -> dict[str, Any]:
    """Times as seconds since 1970, which ClickHouse reads the same in every time zone."""
    return {
        "last_time": _seconds(last.time_ms),
        "last_id": last.id,
        "next_time": _seconds(next_.time_ms),
        "next_id": next_.id,
    }


def read_columns(client: Client, transform: Transform) -> dict[str, str]:
    """The columns that it yields, with their types: rows are inserted by name, not by place."""
    # They are the same whatever the range.
    parameters = {**transform.bound, **(bind(START, START) if transform.has_range else {})}
    return {row[0]: row[1] for row in client.query(f"DESCRIBE TABLE ({transform.select})", parameters)}


Version = tuple[object, ...]
_SETTLED_SECONDS = 2


def read_version(client: Client, topic: Topic, folder: Path) -> Version | None:
    """Differs whenever the topic's table or transform was changed; None while that is too fresh to be known."""
    name = transform_name(topic)
    views = [name] if name is not None and not name.endswith(".sql") else []
    tables = [split_table(table) for table in (topic.dst, *views)]
    rows = client.query(
        "SELECT toString(uuid), toUnixTimestamp(metadata_modification_time), toUnixTimestamp(now()) "
        "FROM system.tables WHERE database IN {databases:Array(String)} AND name IN {names:Array(String)} ORDER BY ALL",
        {
            "databases": [table.database or client.database for table in tables],
            "names": [table.table for table in tables],
        },
    )
    if any(now - changed < _SETTLED_SECONDS for _, changed, now in rows):
        return None  # times have whole seconds: a second change within one would look like none
    files = [folder / file for file in (name, topic.template_file) if file is not None and file not in views]
    text = tuple(file.read_text(encoding="utf-8") for file in files if file.is_file())
    minute = rows[0][2] // 60 if rows else 0  # tables under a transform may change their columns, too
    return (text, minute, *((uuid, changed) for uuid, changed, _ in rows))


def insert_sql(dst: str, columns: tuple[str, ...], transform: Transform, only: str = "") -> str:
    """`only` is a condition on the rows that the transform yields."""
    names = ", ".join(quote(column) for column in columns)
    guard = _still_mine(transform.guard_table) if transform.guard_table else ""
    where = " WHERE " + " AND ".join(part for part in (guard, only) if part) if guard or only else ""
    return f"INSERT INTO {quote_table(dst)} ({names}) SELECT {names} FROM ({transform.select}){where}"  # noqa: S608


def _still_mine(offsets_table: str) -> str:
    """A host that slept while its topic was taken over inserts nothing: its view would read another range by now,
    and the table may have forgotten its token."""
    return f"""NOT throwIf(ifNull(
        (SELECT (hostid, last, next) FROM {quote_table(offsets_table)} WHERE topic = {{topic:String}})
        != ({{hostid:String}}, (fromUnixTimestamp64Milli({{last_ms:Int64}}), {{last_id:UInt64}}),
            (fromUnixTimestamp64Milli({{next_ms:Int64}}), {{next_id:UInt64}})), 1),
        'the range of this topic has changed')"""  # noqa: S608 - the name is quoted


def bind_guard(topic: str, hostid: str, last: Position, next_: Position) -> dict[str, Any]:
    return {
        "topic": topic,
        "hostid": hostid,
        "last_ms": last.time_ms,
        "last_id": last.id,
        "next_ms": next_.time_ms,
        "next_id": next_.id,
    }


def _from_file(topic: Topic, name: str, folder: Path) -> Transform:
    path = folder / name
    if not path.is_file():
        raise ConfigurationError(
            f"Topic {topic.topic}: its transform file {path} does not exist. Put it there, or correct `transform` "
            "in the lineage."
        )
    text = _read_one_statement(topic, path)
    parameters = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    _check_parameters(topic, name, parameters)
    # On lines of its own, so that a closing comment of the file does not swallow what follows.
    return Transform(name=name, select=f"\n{text}\n", offsets_table=None, has_range=bool(parameters))


def _read_one_statement(topic: Topic, path: Path) -> str:
    try:
        statements = split_statements(path.read_text(encoding="utf-8"))
    except UnclosedError as error:
        raise ConfigurationError(f"Topic {topic.topic}: {path}: {error}.") from None
    if len(statements) != 1:
        raise ConfigurationError(
            f"Topic {topic.topic}: its transform file {path} holds {len(statements)} statements; exactly one SELECT "
            "yields the rows. Others belong into `before` and `after`, or into a template of your own (.sql.j2)."
        )
    return statements[0].text


def _from_template(topic: Topic, path: Path, inner: Transform | None) -> Transform:
    """`inner` is the transform that the template may read from."""
    stands_for = None if inner is None else Sql(f"({inner.select})")
    rendered = render_template(topic, path, transform=stands_for)
    texts = (*rendered.before, rendered.select, *rendered.after)
    parameters = tuple(dict.fromkeys(name for text in texts for name in _PARAMETER.findall(text)))
    _check_parameters(topic, path.name, tuple(one for one in parameters if one not in rendered.bound))
    return Transform(
        name=path.name,
        select=f"\n{rendered.select}\n",
        offsets_table=inner.offsets_table if inner else None,
        has_range=any(one in RANGE_PARAMETERS for one in parameters),
        before=rendered.before,
        after=rendered.after,
        bound=rendered.bound,
    )


def _check_parameters(topic: Topic, name: str, parameters: tuple[str, ...]) -> None:
    unknown = [one for one in parameters if one not in RANGE_PARAMETERS]
    if unknown:
        raise ConfigurationError(
            f"Topic {topic.topic}: its transform {name} asks for {', '.join(unknown)}; a step has "
            f"{', '.join(RANGE_PARAMETERS)}."
        )


def _seconds(time_ms: int) -> str:
    return f"{time_ms // 1000}.{time_ms % 1000:03d}"
