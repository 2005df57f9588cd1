"""What the driver sends to a read task, and what the task returns: plans and manifests, nothing else.

A plan travels with the Spark task, a manifest comes back as a line of JSON. Neither holds a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from oncehouse.column_types.types import ColumnType
from oncehouse.ledger.models import DeadLetterKind, FileRef, Schema
from oncehouse.pipeline.dedup.identity_rule import Rule
from oncehouse.pipeline.formats.base import Format
from oncehouse.pipeline.spark.arrow_batches import CountedHandover
from oncehouse.pipeline.transform.plan import TransformPlan

MANIFEST_SCHEMA = "manifest string"


@dataclass(frozen=True, kw_only=True)
class TableReadPlan:
    """Which events a table takes, and as which columns."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """(column, field)"""
    id_column: str | None
    route_field: str | None = None
    route_values: tuple[str | int | bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """All that a read task needs; it travels to Spark's workers with the task."""

    pipeline: str
    epoch: int
    token: int
    topics: tuple[str, ...]
    format: Format
    fields: Mapping[str, ColumnType]
    identity: Rule
    tables: tuple[TableReadPlan, ...]
    files_root: str
    max_message_bytes: int
    max_depth: int
    part_rows: int
    part_bytes: int
    whole: bool
    """A small epoch: one task reads all partitions, sorts them, and writes one part."""
    schemas: tuple[Schema, ...] = ()
    """Those known when the epoch began; records of others wait."""
    transform: TransformPlan | None = None
    counted: CountedHandover | None = None
    """How records are handed over; None: in blocks that are weighed."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Versions of the schema that lack a field which ids or tables depend on, each with what it lacks."""
    needs_value: bool = False
    """Whether an event must have a value in at least one field of the identity."""
    must_be_set: tuple[tuple[str, ...], ...] = ()
    """Fields of the identity that a record may not leave out, each as the steps that lead to it."""
    needed_columns: Mapping[str, str] = field(default_factory=dict)
    """Columns that a frame or file must have though their fields take null, each with the reason."""

    @property
    def columns(self) -> dict[str, ColumnType]:
        """All that a part may hold: decoded fields, and what shaping adds."""
        return {**self.fields, **(self.transform.types if self.transform else {})}

    def for_table(self, name: str) -> ReadPlan:
        """The plan of one table alone."""
        return replace(
            self,
            tables=tuple(table for table in self.tables if table.name == name),
            transform=self.transform and self.transform.for_table(name),
        )


@dataclass(frozen=True, kw_only=True)
class PartManifest:
    table: int
    rows: int
    size_bytes: int
    shape: str
    """Names the columns and their types: only parts of one shape go into one batch."""
    file: FileRef


@dataclass(frozen=True, kw_only=True)
class ChunkManifest:
    """`first` orders the chunks of an epoch as Kafka orders their records."""

    first: tuple[int, int]
    events: int
    keys: FileRef
    raw: FileRef
    parts: tuple[PartManifest, ...]


@dataclass(frozen=True, kw_only=True)
class DeadLetterManifest:
    kind: DeadLetterKind
    rows: int
    reasons: dict[str, int]
    sample: str
    """The first of them: position, reason and detail."""
    file: FileRef


@dataclass(frozen=True, kw_only=True)
class TaskManifest:
    read: int
    skipped: int
    chunks: tuple[ChunkManifest, ...]
    letters: tuple[DeadLetterManifest, ...]
    read_bytes: int = 0
    """Of values and keys."""
    new_fields: dict[str, str | None] = field(default_factory=dict)
    """Undeclared fields and their types; None: no column can hold it."""
    outsize: bool = False
    """A record was too large to be handed over: nothing of this counts, and all is to be read by weight."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> TaskManifest:
        found = json.loads(text)
        return TaskManifest(
            read=found["read"],
            skipped=found["skipped"],
            chunks=tuple(_chunk(chunk) for chunk in found["chunks"]),
            letters=tuple(_dead_letters(entry) for entry in found["letters"]),
            read_bytes=found["read_bytes"],
            new_fields=found["new_fields"],
            outsize=found["outsize"],
        )


def _dead_letters(found: dict[str, Any]) -> DeadLetterManifest:
    return DeadLetterManifest(
        **{**found, "kind": DeadLetterKind(found["kind"]), "file": FileRef(**found["file"])}
    )


def _chunk(found: dict[str, Any]) -> ChunkManifest:
    return ChunkManifest(
        first=tuple(found["first"]),
        events=found["events"],
        keys=FileRef(**found["keys"]),
        raw=FileRef(**found["raw"]),
        parts=tuple(PartManifest(**{**part, "file": FileRef(**part["file"])}) for part in found["parts"]),
    )
