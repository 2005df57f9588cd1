"""The lineage as a table in ClickHouse, `Lineage`, in step with the folder: for joins, dashboards and people.

The folder is the truth. `write_lineage` builds the table aside and exchanges it, so that a reader sees the old
lines or the new ones. Files of SQL are stored by their name within the folder, the same from every machine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.identifiers import quote
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.etl.lineage.expectation_file import read_expectation, write_expectation
from oncehouse.etl.lineage.topic import LatePolicy, Template, Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from oncehouse.clickhouse.client import Client

TABLE = "Lineage"

_COLUMNS = """\
(
    dst String,
    topic String,
    depends_on Array(String),
    template String,
    transform Nullable(String),
    delay Float64,
    repeat Float64,
    maxstep UInt64,
    comment String,
    before Array(String),
    after Array(String),
    range_column Nullable(String),
    gate Float64,
    expect Array(String),
    template_file Nullable(String),
    parameters Map(String, String),
    late String,
    late_within Float64
)
ENGINE = MergeTree
ORDER BY topic"""
_NAMES = (
    "dst, topic, depends_on, template, transform, delay, repeat, maxstep, comment, "
    "before, after, range_column, gate, expect, template_file, parameters, late, late_within"
)


def lineage_ddl(database: str, table: str = TABLE) -> str:
    return f"CREATE TABLE IF NOT EXISTS {quote(database)}.{quote(table)}\n{_COLUMNS}"


def as_stored(lineage: Sequence[Topic], folder: Path) -> tuple[Topic, ...]:
    """The topics with paths of files as the table holds them."""
    return tuple(
        replace(
            topic,
            transform=None if topic.transform is None else _inside(topic.transform, folder),
            template_file=None if topic.template_file is None else _inside(topic.template_file, folder),
        )
        for topic in lineage
    )


def _inside(name: str, folder: Path) -> str:
    path = Path(name)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else name


def read_lineage(client: Client, database: str) -> tuple[Topic, ...] | None:
    """What the table holds; None when there is no table yet."""
    if describe_table(client, f"{database}.{TABLE}") is None:
        return None
    table = f"{quote(database)}.{quote(TABLE)}"
    rows = client.query(f"SELECT {_NAMES} FROM {table} ORDER BY topic")  # noqa: S608 - quoted
    return tuple(_make_topic(row) for row in rows)


def write_lineage(client: Client, database: str, lineage: Sequence[Topic]) -> None:
    """Replace what the table holds, at one moment."""
    staging = f"{quote(database)}.{quote(TABLE + 'New')}"
    client.command(lineage_ddl(database))
    client.command(f"DROP TABLE IF EXISTS {staging} SYNC")
    client.command(lineage_ddl(database, TABLE + "New"))
    if lineage:
        rows = _arrow_stream(lineage)
        client.insert_arrow(f"{database}.{TABLE}New", tuple(_NAMES.split(", ")), rows, {})
    client.command(f"EXCHANGE TABLES {quote(database)}.{quote(TABLE)} AND {staging}")
    client.command(f"DROP TABLE {staging} SYNC")


def _arrow_stream(lineage: Sequence[Topic]) -> pa.Buffer:
    """All lines as one block: a thousand topics are one insert."""
    import pyarrow as pa

    texts, text, number = pa.list_(pa.string()), pa.string(), pa.float64()
    kinds = {"depends_on": texts, "before": texts, "after": texts, "delay": number, "repeat": number}
    kinds |= {"maxstep": pa.uint64(), "gate": number, "expect": texts, "parameters": pa.map_(text, text)}
    kinds["late_within"] = number
    schema = pa.schema([(name, kinds.get(name, text)) for name in _NAMES.split(", ")])
    table = pa.Table.from_pylist([_line(topic) for topic in lineage], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _line(topic: Topic) -> dict[str, Any]:
    return {
        "dst": topic.dst,
        "topic": topic.topic,
        "depends_on": list(topic.depends_on),
        "template": str(topic.template),
        "transform": topic.transform,
        "delay": topic.delay_seconds,
        "repeat": topic.repeat_seconds,
        "maxstep": topic.maxstep_rows,
        "comment": topic.comment,
        "before": list(topic.before),
        "after": list(topic.after),
        "range_column": topic.range_column,
        "gate": topic.gate_share,
        "expect": [write_expectation(one) for one in topic.expect],
        "template_file": topic.template_file,
        "parameters": [(name, json.dumps(value, ensure_ascii=False)) for name, value in topic.parameters],
        "late": str(topic.late),
        "late_within": topic.late_within_seconds,
    }


def _make_topic(row: tuple[Any, ...]) -> Topic:
    line = dict(zip(_NAMES.split(", "), row, strict=True))
    return Topic(
        dst=line["dst"],
        topic=line["topic"],
        depends_on=tuple(line["depends_on"]),
        template=Template(line["template"]),
        transform=line["transform"],
        delay_seconds=line["delay"],
        repeat_seconds=line["repeat"],
        maxstep_rows=line["maxstep"],
        comment=line["comment"],
        before=tuple(line["before"]),
        after=tuple(line["after"]),
        range_column=line["range_column"],
        gate_share=line["gate"],
        expect=tuple(read_expectation(text) for text in line["expect"]),
        template_file=line["template_file"],
        parameters=tuple((name, _read_value(text)) for name, text in dict(line["parameters"]).items()),
        late=LatePolicy(line["late"]),
        late_within_seconds=line["late_within"],
    )


def _read_value(text: str) -> Any:
    value = json.loads(text)
    return tuple(value) if isinstance(value, list) else value
