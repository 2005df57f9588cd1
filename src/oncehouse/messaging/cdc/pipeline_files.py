"""The pipeline file for a captured table, and the command that creates its table in ClickHouse.

Pure. The file has only what follows from the table; all other settings have their defaults and may be edited.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import yaml

from oncehouse.config.field_types import check_name
from oncehouse.messaging.cdc.column_types import choose_type
from oncehouse.messaging.cdc.source_tables import SourceTable

ENGINE = "ReplacingMergeTree(_version, _deleted)"

# Reserved: the format adds columns with these names.
_OWN = {"_version", "_deleted", "_op", "_table", "_key", "_position"}
_NAME_LENGTH = 63


@dataclass(frozen=True, kw_only=True)
class PipelineFile:
    name: str
    """The pipeline's name; with `.yaml` the file's."""
    text: str
    order_by: tuple[str, ...]
    left_out: tuple[str, ...]
    """Columns that are left out, each with the reason."""

    def create_command(self, file: str) -> str:
        """The command that creates the table."""
        words = ["oncehouse", "table", "create", file, "--engine", ENGINE]
        return shlex.join([*words, "--order-by", ",".join(self.order_by), "--yes"])


def write_pipeline(
    table: SourceTable, *, topic: str, bootstrap_servers: str, clickhouse_url: str
) -> PipelineFile:
    name = _name_pipeline(topic)
    fields, left_out = _choose_fields(table)
    document = {
        "pipeline": name,
        "source": {
            "kafka": {"bootstrap_servers": bootstrap_servers, "topics": [topic]},
            "format": "debezium",
            "fields": {**fields, "_version": "UInt64", "_deleted": "UInt8"},
        },
        # By default an event is identified by table, key and position in the database's log.
        "identity": {"window": "60d"},
        "tables": [
            {"name": table.name if table.schema == "public" else f"{table.schema}_{table.name}"},
        ],
        "clickhouse": {"url": clickhouse_url},
        "ledger": {"catalog": f"sqlite:///ledger/{name}/catalog.db", "files": f"ledger/{name}/files"},
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    key = tuple(column for column in table.key if column in fields)
    made = PipelineFile(name=name, text="", order_by=key, left_out=left_out)
    return PipelineFile(
        name=name, text=_introduce(table, made, f"{name}.yaml") + text, order_by=key, left_out=left_out
    )


def _introduce(table: SourceTable, made: PipelineFile, file: str) -> str:
    return (
        f"# Changes of the table {table.full_name}. Its table in ClickHouse is created by\n"
        f"#   {made.create_command(file)}\n"
        "# and shows, with FINAL, the rows that the database has.\n"
    )


def _choose_fields(table: SourceTable) -> tuple[dict[str, str], tuple[str, ...]]:
    fields: dict[str, str] = {}
    left_out: list[str] = []
    for column in table.columns:
        type_ = choose_type(column)
        if column.name in _OWN:
            left_out.append(f"{column.name}: a field of the format has this name")
        elif type_ is None:
            left_out.append(f"{column.name}: Debezium does not write columns of type {column.type_name}")
        elif problem := _check_name(column.name):
            left_out.append(f"{column.name!a}: {problem}")
        else:
            fields[column.name] = type_
    return fields, tuple(left_out)


def _check_name(name: str) -> str | None:
    try:
        check_name(name)
    except ValueError as error:
        return str(error)
    return None


def _name_pipeline(topic: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "_", topic.lower())[:_NAME_LENGTH]
