"""What `verify` reports: differences, and what could not be compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Subject(StrEnum):
    """What a finding or note is about."""

    OFFSETS = "offsets"
    COUNTS = "counts"
    FILES = "files"
    BATCHES = "batches"
    ROWS = "rows"


@dataclass(frozen=True, kw_only=True)
class VerifyFinding:
    """A difference that must not be."""

    kind: Subject
    where: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that could not be compared, or not yet."""

    kind: Subject
    where: str
    message: str


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    findings: tuple[VerifyFinding, ...]
    notes: tuple[Note, ...]
    epochs: int
    parts: int
    batches: int
    files: int
    rows_in_clickhouse: int | None
    """Rows found in the tables; none when ClickHouse was not asked."""

    @property
    def is_clean(self) -> bool:
        return not self.findings
