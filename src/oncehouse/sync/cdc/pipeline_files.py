"""The pipeline file of a sync that is fed from the database's log, with the columns of the sync's own table.

Pure. Versions: a round's is the microseconds of a clock, a change's is its offset in Kafka, and the pipeline adds
`VERSIONS_ABOVE` to it. So what comes from the log stands above whatever rounds wrote or still write to the same table,
in whichever order the two are switched. The way back needs a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from oncehouse.column_types.types import clickhouse_name
from oncehouse.config.field_types import check_name
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError
from oncehouse.sync.model.declaration import BATCH_COLUMN, Declaration
from oncehouse.sync.model.engines import Replacing

VERSIONS_ABOVE = 1 << 62
"""Above the microseconds of every clock that there will be, with room for as many offsets again."""

_VERSION, _DELETED = "_version", "_deleted"
_OWN = frozenset({_VERSION, _DELETED, "_op", "_table", "_key", "_position"})
_RAISED = "oncehouse_version"


@dataclass(frozen=True, kw_only=True)
class TopicAddress:
    bootstrap_servers: str
    topic: str


def write_pipeline(
    declared: Declaration,
    engine: Replacing,
    *,
    columns: Mapping[str, str],
    brokers: TopicAddress,
    clickhouse: ClickHouse,
) -> str:
    """`columns`: column of the sync -> column of the source table."""
    name = declared.pipeline
    raised = _name_raised(columns)
    document = {
        "pipeline": name,
        "source": {
            "kafka": {"bootstrap_servers": brokers.bootstrap_servers, "topics": [brokers.topic]},
            "format": "debezium",
            "fields": {**_fields(declared, columns), _VERSION: "UInt64", _DELETED: "UInt8"},
        },
        # By itself an event is table, key and place in the database's log.
        "identity": {"window": "60d"},
        "shape": {"columns": {raised: {"type": "UInt64", "sql": f"{_VERSION} + {VERSIONS_ABOVE}"}}},
        "tables": [
            {
                "name": declared.table,
                "columns": {**columns, engine.version: raised, engine.deleted: _DELETED},
                "batch_column": BATCH_COLUMN,
                "id_column": None,
            }
        ],
        "clickhouse": _show_clickhouse(clickhouse),
        "ledger": {"catalog": f"sqlite:///ledger/{name}/catalog.db", "files": f"ledger/{name}/files"},
    }
    return _introduce(declared) + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


def check_column_name(name: str) -> str | None:
    """Why a column of the source table, or the destination, cannot be named in a pipeline file."""
    if name in _OWN:
        return "a field of the change itself has this name"
    if "${" in name:
        return "it would be read as a reference"
    try:
        check_name(name)
    except ValueError as error:
        return str(error)
    return None


def _fields(declared: Declaration, columns: Mapping[str, str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, source in columns.items():
        type_ = clickhouse_name(declared.columns[name])
        if fields.setdefault(source, type_) != type_:
            raise ConfigurationError(
                f"Sync {declared.name}: {source!r} of the source table is read as {fields[source]} and as {type_}; the "
                "pipeline reads a column once. Give both columns one type, or leave one out"
            )
    return fields


def _name_raised(columns: Mapping[str, str]) -> str:
    name = _RAISED
    while name in columns.values():
        name += "_"
    return name


def _show_clickhouse(config: ClickHouse) -> dict[str, Any]:
    """The password is named and not shown."""
    return {
        "url": config.url,
        **({"user": config.user} if config.user != "default" else {}),
        **({"password": "${env:CLICKHOUSE_PASSWORD}"} if config.password.get_secret_value() else {}),
        **({} if config.verify_tls else {"verify_tls": False}),
        **({"ca_file": config.ca_file} if config.ca_file else {}),
    }


def _introduce(declared: Declaration) -> str:
    return (
        f"# The sync {declared.name}, fed from the log of the database. Its table in ClickHouse is made by\n"
        f"#   oncehouse sync apply {declared.name}\n"
        "# Versions of changes stand above those of rounds; leave that as it is.\n"
    )
