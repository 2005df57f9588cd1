"""A user's pipeline file with servers, ledger and secrets of the chaos run in the place of the user's own.

Fields, format, identity, shape, columns and routes stay as they are. Limits are only ever made smaller, so that a few
thousand events make several epochs and batches, and waits shorter; a window is at least a day, so that no repeat in a
run is an event of its own. What is replaced is never looked at: its references need not lead anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from oncehouse.config.file_loader import load_pipeline, read_document
from oncehouse.devstack.server_base import LOCALHOST
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.config.pipeline import BatchLimits, Pipeline

_EPOCHS_ABOUT = 8
_BATCHES_ABOUT = 4
_SECURITY = ("security.", "sasl.", "ssl.")
_LEASE_SECONDS = 5.0
_WINDOW_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where one run of the pipeline happens."""

    folder: Path
    bootstrap_servers: str = f"{LOCALHOST}:9"
    clickhouse_url: str = f"http://{LOCALHOST}:9"
    number: int = 0
    """Distinguishes topics and databases of runs."""
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    clickhouse: Mapping[str, object] = field(default_factory=dict)
    """Settings of the connection that the run needs to be otherwise."""

    @property
    def database(self) -> str:
        return f"chaos_{self.number}"

    def topics(self, count: int) -> list[str]:
        return [f"chaos-{self.number}-{at:03d}" for at in range(count)]


def load_there(file: Path, place: RunPlace, *, keep_registry: bool) -> Pipeline:
    """The user's pipeline at a place, its limits as they stand in the file."""
    pipeline = load_pipeline(file, lambda document: _move(document, place, keep_registry=keep_registry))
    if pipeline.source.kafka is None:
        raise ConfigurationError(
            f"{file}: `format: frame` takes rows of DataFrames and imports; chaos is played over pipelines that read "
            "Kafka"
        )
    return pipeline


def write_there(file: Path, place: RunPlace, *, events: int, keep_registry: bool) -> Path:
    """Write the file of one run into its folder, and say where it is."""
    known = load_there(file, place, keep_registry=keep_registry)

    def change(document: dict[str, Any]) -> dict[str, Any]:
        return _hurry(_move(document, place, keep_registry=keep_registry), known, events)

    # Through JSON, so that no value is written as a reference to an equal one before it.
    document = json.loads(json.dumps(read_document(file, change)))
    there = place.folder / "pipeline.yaml"
    there.touch(mode=0o600)
    there.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return there


def _move(document: dict[str, Any], place: RunPlace, *, keep_registry: bool) -> dict[str, Any]:
    """Tolerates whatever stands in the file: what is wrong with it is reported when the result is checked."""
    source = _section(document, "source")
    moved = {**document, "source": _move_source(source, place, keep_registry=keep_registry)}
    if isinstance(tables := document.get("tables"), list):
        moved["tables"] = _move_tables(tables, place)
    kept = {
        key: value
        for key, value in _section(document, "clickhouse").items()
        if key in {"connect_timeout", "insert_timeout"}
    }
    moved["clickhouse"] = {**kept, "url": place.clickhouse_url, **place.clickhouse}
    moved["ledger"] = {
        **_section(document, "ledger"),
        "catalog": f"sqlite:///{place.folder}/ledger/catalog.db",
        "files": str(place.folder / "ledger" / "files"),
    }
    moved["spark"] = {"master": "local[2]", "settings": dict(place.spark_settings)}
    return moved


def _section(holder: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = holder.get(key)
    return found if isinstance(found, dict) else {}


def _move_source(source: dict[str, Any], place: RunPlace, *, keep_registry: bool) -> dict[str, Any]:
    moved = dict(source)
    for name in ("avro", "protobuf"):
        section = _section(source, name)
        if section.get("schemas") and not keep_registry:
            moved[name] = {key: value for key, value in section.items() if key != "registry"}
    kafka = _section(source, "kafka")
    if kafka:
        topics = kafka.get("topics")
        moved["kafka"] = {
            **kafka,
            "bootstrap_servers": place.bootstrap_servers,
            "topics": place.topics(len(topics)) if isinstance(topics, list) and topics else topics,
            "options": {
                key: value
                for key, value in _section(kafka, "options").items()
                if not key.startswith(_SECURITY) and "${" not in str(value)
            },
        }
    return moved


def _move_tables(tables: Sequence[Any], place: RunPlace) -> list[Any]:
    """Into a database of the run's own; tables of one name in two databases keep apart by their place."""
    moved: list[Any] = []
    names: set[str] = set()
    for at, table in enumerate(tables):
        name = table.get("name") if isinstance(table, dict) else None
        if not isinstance(name, str):
            moved.append(table)
            continue
        bare = name.rpartition(".")[2]
        bare = f"{bare}_{at}" if bare in names else bare
        names.add(bare)
        moved.append({**table, "name": f"{place.database}.{bare}"})
    return moved


def _hurry(document: dict[str, Any], known: Pipeline, events: int) -> dict[str, Any]:
    most_dead = known.dead_letters.max_share
    hurried = {
        **document,
        "epoch": {
            **_section(document, "epoch"),
            "max_rows": min(known.epoch.max_rows, max(1, events // _EPOCHS_ABOUT)),
            "max_wait": min(known.epoch.max_wait, 0.2),
        },
        "batch": _hurry_batches(known.batch, events),
        "retry": {"base": min(known.retry.base, 0.2), "longest": min(known.retry.longest, 1.0)},
        "lease": min(known.lease, _LEASE_SECONDS),
        "identity": {
            **_section(document, "identity"),
            "window": max(known.identity.window, _WINDOW_SECONDS),
        },
        "dead_letters": {
            **_section(document, "dead_letters"),
            "max_share": None if most_dead is None else max(most_dead, 0.5),
        },
    }
    hurried["tables"] = [
        {**given, "batch": _hurry_batches(table.batch, events)} if table.batch is not None else given
        for given, table in zip(document["tables"], known.tables, strict=True)
    ]
    return hurried


def _hurry_batches(limits: BatchLimits, events: int) -> dict[str, Any]:
    most = min(limits.max_rows, max(1, events // _BATCHES_ABOUT))
    return {
        "min_rows": min(limits.min_rows, most, max(1, events // 20)),
        "max_rows": most,
        "max_bytes": limits.max_bytes,
        "max_wait": min(limits.max_wait, 0.5),
        "min_interval": min(limits.min_interval, 0.1),
    }
