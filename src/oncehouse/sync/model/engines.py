"""The ClickHouse engines that a sync may write to: which columns each adds, and which rows a round sends. Pure.

`Replacing` is idempotent by itself: the row with the highest version of a key counts, and is gone where it is marked as
deleted. The others are not, so what they once made of a reading is written down and sent again unchanged
(`is_idempotent`). Collapsing engines need the rows that the table holds (`cancels`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from oncehouse.clickhouse.identifiers import quote
from oncehouse.errors import ConfigurationError

Row = tuple[Any, ...]

_VERSION_TYPE = "UInt64"


@dataclass(frozen=True, kw_only=True)
class KeyReading:
    """What a round found for the keys of its operations."""

    number: int
    present: Mapping[str, Row]
    """By key, in the order of the sync's columns."""
    absent: Mapping[str, Row]
    """Keys that have no row: their key columns, defaults in all others."""
    existing: Mapping[str, Row] = field(default_factory=dict)
    """What the table holds for these keys, with the engine's own version at the end where it has one."""


@dataclass(frozen=True, kw_only=True)
class EngineRows:
    """What is sent: rows of the sync's columns, and columns of the engine's own."""

    rows: Sequence[Row]
    own: Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """`order_by` and `partition_by` are columns; without them the table is sorted by the key, in one partition."""

    order_by: tuple[str, ...] = ()
    partition_by: str | None = None
    """An expression of ClickHouse's own, such as `toYYYYMM(created_at)`."""
    replicated: str | None = None
    """The path in Keeper and the replica, such as `'/clickhouse/tables/{shard}/users', '{replica}'`."""

    is_idempotent: ClassVar[bool] = False
    cancels: ClassVar[bool] = False
    fills_gaps: ClassVar[bool] = False
    """A backfill adds rows of keys that the table has none of, and leaves all others alone."""
    family: ClassVar[str] = "MergeTree"

    def own_columns(self) -> dict[str, str]:
        """The columns that the engine adds, with their types."""
        return {}

    def arguments(self) -> tuple[str, ...]:
        """Columns among the engine's arguments."""
        return ()

    def choose_rows(self, reading: KeyReading) -> EngineRows:
        raise NotImplementedError

    def version_columns(self) -> tuple[str, ...]:
        """Columns of the engine's own that are read with the rows that the table holds."""
        return ()

    def number_column(self) -> str | None:
        """The column that holds the number of the reading, where there is one."""
        return None

    def sorting_key(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """The columns that the table is sorted by; the model's key is among them."""
        return (*self.order_by, *(name for name in key if name not in self.order_by))

    def clause(self) -> str:
        places = [self.replicated] if self.replicated else []
        inside = ", ".join([*places, *(quote(name) for name in self.arguments())])
        return f"{'Replicated' if self.replicated else ''}{self.family}({inside})"


@dataclass(frozen=True, kw_only=True)
class Replacing(Engine):
    """ReplacingMergeTree(version, deleted): read it with FINAL, which shows each key's newest row unless deleted."""

    version: str = "_version"
    deleted: str = "_deleted"

    is_idempotent: ClassVar[bool] = True
    family: ClassVar[str] = "ReplacingMergeTree"

    def own_columns(self) -> dict[str, str]:
        return {self.version: _VERSION_TYPE, self.deleted: "UInt8"}

    def arguments(self) -> tuple[str, ...]:
        return (self.version, self.deleted)

    def number_column(self) -> str:
        return self.version

    def sorting_key(self, key: tuple[str, ...]) -> tuple[str, ...]:
        # Rows replace each other by the sorting key, and of a deleted row nothing but its key is known.
        if not set(self.order_by) <= set(key):
            raise ConfigurationError(
                f"Replacing keeps one row of each sorting key, which may be the model's key alone ({', '.join(key)}): "
                f"with order_by={self.order_by!r} a changed row would stand next to its older self. Leave "
                "order_by out, or use Collapsing."
            )
        return super().sorting_key(key)

    def choose_rows(self, reading: KeyReading) -> EngineRows:
        present, absent = list(reading.present.values()), list(reading.absent.values())
        return EngineRows(
            rows=present + absent,
            own={
                self.version: [reading.number] * (len(present) + len(absent)),
                self.deleted: [0] * len(present) + [1] * len(absent),
            },
        )


@dataclass(frozen=True, kw_only=True)
class Append(Engine):
    """A plain MergeTree: every reading of a changed row is one more row.

    With `version` and `deleted` it is a history; without `deleted` deletions leave no row.
    """

    version: str | None = "_version"
    deleted: str | None = "_deleted"

    fills_gaps: ClassVar[bool] = True

    def own_columns(self) -> dict[str, str]:
        return {
            name: type_
            for name, type_ in ((self.version, _VERSION_TYPE), (self.deleted, "UInt8"))
            if name is not None
        }

    def number_column(self) -> str | None:
        return self.version

    def choose_rows(self, reading: KeyReading) -> EngineRows:
        present = list(reading.present.values())
        absent = list(reading.absent.values()) if self.deleted is not None else []
        own: dict[str, Sequence[int]] = {}
        if self.version is not None:
            own[self.version] = [reading.number] * (len(present) + len(absent))
        if self.deleted is not None:
            own[self.deleted] = [0] * len(present) + [1] * len(absent)
        return EngineRows(rows=present + absent, own=own)


@dataclass(frozen=True, kw_only=True)
class Collapsing(Engine):
    """CollapsingMergeTree(sign): a changed row is cancelled by its older self with -1, so sums by sign are right."""

    sign: str = "_sign"

    cancels: ClassVar[bool] = True
    family: ClassVar[str] = "CollapsingMergeTree"

    def own_columns(self) -> dict[str, str]:
        return {self.sign: "Int8"}

    def arguments(self) -> tuple[str, ...]:
        return (self.sign,)

    def choose_rows(self, reading: KeyReading) -> EngineRows:
        rows, signs, _versions = self._collapse(reading, versions=False)
        return EngineRows(rows=rows, own={self.sign: signs})

    def _collapse(self, reading: KeyReading, *, versions: bool) -> tuple[list[Row], list[int], list[int]]:
        rows: list[Row] = []
        signs: list[int] = []
        numbers: list[int] = []
        for key in (*reading.present, *reading.absent):
            new, existing = reading.present.get(key), reading.existing.get(key)
            old = existing[:-1] if existing is not None and versions else existing
            if new == old:
                continue
            if old is not None and existing is not None:
                rows.append(old)
                signs.append(-1)
                numbers.append(existing[-1] if versions else 0)
            if new is not None:
                rows.append(new)
                signs.append(1)
                numbers.append(reading.number)
        return rows, signs, numbers


@dataclass(frozen=True, kw_only=True)
class VersionedCollapsing(Collapsing):
    """VersionedCollapsingMergeTree(sign, version): as Collapsing, and rows may arrive in any order."""

    version: str = "_version"

    family: ClassVar[str] = "VersionedCollapsingMergeTree"

    def own_columns(self) -> dict[str, str]:
        return {self.sign: "Int8", self.version: _VERSION_TYPE}

    def arguments(self) -> tuple[str, ...]:
        return (self.sign, self.version)

    def version_columns(self) -> tuple[str, ...]:
        return (self.version,)

    def number_column(self) -> str:
        return self.version

    def choose_rows(self, reading: KeyReading) -> EngineRows:
        rows, signs, versions = self._collapse(reading, versions=True)
        return EngineRows(rows=rows, own={self.sign: signs, self.version: versions})
