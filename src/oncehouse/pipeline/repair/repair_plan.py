"""What is damaged, from where it can be made again, what that costs, and what is lost where it cannot be. Pure.

A ledger's state, the files found wanting and what Kafka still has go in, frozen repairs come out. A file is made again
from the next better source: raw bytes from Kafka, ids from raw bytes, positions of duplicates and the key index from
ids, parts from raw bytes. `file_restorer.py` performs what is planned here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, Unpack

from oncehouse.ledger.catalog.segments import is_adopted
from oncehouse.ledger.models import (
    BatchStatus,
    DeadLetterFile,
    DeadLetterKind,
    EpochKind,
    FileRef,
    OffsetRange,
    Part,
    Segment,
)
from oncehouse.ledger.stats.ledger_state import LedgerState, RegisteredKeyFile
from oncehouse.pipeline.repair.kafka_availability import KafkaFacts, missing_offsets


class FileKind(StrEnum):
    """In the order in which they are made again: each needs those before it."""

    RAW = "raw bytes"
    KEYS = "key file"
    DUPLICATES = "duplicates"
    PART = "part"
    DEAD_LETTERS = "dead letters"
    SEGMENT = "segment"


class RepairSource(StrEnum):
    KAFKA = "Kafka"
    RAW = "raw bytes"
    KEYS = "key files"
    CLICKHOUSE = "ClickHouse"


@dataclass(frozen=True, kw_only=True)
class Repair:
    """One damaged file, or the range of a pack that one part, key file or list of duplicates is."""

    kind: FileKind
    name: str
    epoch: int
    file: FileRef
    problem: str
    rows: int
    """Events, rows, positions, dead letters or ids that it holds."""
    source: RepairSource | None
    """None: it cannot be made again, and `why` has the reason."""
    why: str | None = None
    records: int = 0
    """What has to be read for it: offsets of Kafka, or events of the ledger."""
    ranges: tuple[OffsetRange, ...] = ()
    """The offsets that its epoch settled."""
    lost: str
    """What cannot be done as long as it is not made again."""


def plan_repairs(
    state: LedgerState, damaged: Mapping[str, str], kafka: KafkaFacts, *, rekeyed_at: float | None = None
) -> tuple[Repair, ...]:
    """`damaged`: what is wrong with each path. `rekeyed_at`: when ids were last made by another rule."""
    return tuple(_Planner(state, damaged, kafka, rekeyed_at).plan()) if damaged else ()


class _Known(TypedDict):
    epoch: int
    rows: int
    records: int
    lost: str


class _Planner:
    def __init__(
        self, state: LedgerState, damaged: Mapping[str, str], kafka: KafkaFacts, rekeyed_at: float | None
    ) -> None:
        self._state = state
        self._damaged = damaged
        self._kafka = kafka
        self._rekeyed_at = rekeyed_at
        self._kinds = {row.epoch: row.kind for row in state.epochs}
        self._registered_at = {row.epoch: row.registered_at for row in state.epochs}
        self._statuses = {batch.batch_id: batch.status for batch in state.batches}
        self._ranges: dict[int, list[OffsetRange]] = defaultdict(list)
        for epoch, span in state.ranges:
            self._ranges[epoch].append(span)
        self._key_files = {found.key_file.key_file: found for found in state.key_files}
        self._by_epoch: dict[int, list[RegisteredKeyFile]] = defaultdict(list)
        for found in state.key_files:
            self._by_epoch[found.epoch].append(found)

    def plan(self) -> Iterator[Repair]:
        state = self._state
        yield from (self._raw(found) for found in state.key_files if self._is_bad(found.key_file.raw))
        yield from (self._keys(found) for found in state.key_files if self._is_bad(found.key_file.keys))
        for epoch, files in state.duplicates.items():
            yield from (self._duplicates(epoch, f.rows, f.file) for f in files if self._is_bad(f.file))
        met: set[tuple[str, int]] = set()
        for part in state.parts:
            # A part that was sent again has the same file under another name.
            if self._is_bad(part.file) and (part.file.path, part.file.row) not in met:
                met.add((part.file.path, part.file.row))
                yield self._part(part)
        yield from (
            self._plan_dead_letters(found) for found in state.dead_letter_files if self._is_bad(found.file)
        )
        yield from (self._segment(found) for found in state.segments if self._is_bad(found.file))

    def _is_bad(self, file: FileRef) -> bool:
        return file.path in self._damaged

    def _why_not_kafka(self, epoch: int) -> str | None:
        if (kind := self._kinds.get(epoch)) is not EpochKind.KAFKA:
            return f"its records were not read from Kafka (epoch {epoch} is of the kind {kind or 'unknown'})"
        return "; ".join(missing_offsets(self._ranges[epoch], self._kafka)) or None

    def _why_no_raw(self, found: RegisteredKeyFile) -> str | None:
        return self._why_not_kafka(found.epoch) if self._is_bad(found.key_file.raw) else None

    def _count_offsets(self, epoch: int) -> int:
        return sum(span.end - span.start for span in self._ranges[epoch])

    def _repair(
        self,
        kind: FileKind,
        name: str,
        file: FileRef,
        source: RepairSource,
        why: str | None,
        **known: Unpack[_Known],
    ) -> Repair:
        return Repair(
            kind=kind,
            name=name,
            file=file,
            problem=self._damaged[file.path],
            source=None if why else source,
            why=why,
            ranges=tuple(self._ranges[known["epoch"]]),
            **known,
        )

    def _raw(self, found: RegisteredKeyFile) -> Repair:
        key_file, why = found.key_file, self._why_not_kafka(found.epoch)
        return self._repair(
            FileKind.RAW,
            key_file.key_file,
            key_file.raw,
            RepairSource.KAFKA,
            why,
            epoch=found.epoch,
            rows=key_file.events,
            records=self._count_offsets(found.epoch),
            lost=f"the bytes of {key_file.events} events: no table can be filled with them again, and the identity "
            "rule cannot be changed; what is in parts and in ClickHouse is not affected",
        )

    def _keys(self, found: RegisteredKeyFile) -> Repair:
        key_file, why = found.key_file, self._why_no_raw(found)
        return self._repair(
            FileKind.KEYS,
            key_file.key_file,
            key_file.keys,
            RepairSource.RAW,
            why,
            epoch=found.epoch,
            rows=key_file.events,
            records=key_file.events,
            lost=f"the ids of {key_file.events} events: the key index, which has them too, cannot be rebuilt",
        )

    def _duplicates(self, epoch: int, rows: int, file: FileRef) -> Repair:
        why = next(
            filter(None, (self._why_no_keys(found) for found in self._by_epoch[epoch])), None
        ) or self._why_other_ids(epoch)
        return self._repair(
            FileKind.DUPLICATES,
            f"epoch {epoch}",
            file,
            RepairSource.KEYS,
            why,
            epoch=epoch,
            rows=rows,
            records=sum(found.key_file.events for found in self._state.key_files if found.epoch <= epoch),
            lost=f"which {rows} of the epoch's events are duplicates: {self._describe_unsent(epoch)}",
        )

    def _why_no_keys(self, found: RegisteredKeyFile) -> str | None:
        return self._why_no_raw(found) if self._is_bad(found.key_file.keys) else None

    def _why_other_ids(self, epoch: int) -> str | None:
        if self._rekeyed_at is not None and self._registered_at.get(epoch, 0.0) <= self._rekeyed_at:
            return "the identity rule was changed since, so the ids do not show what was a duplicate then"
        return None

    def _describe_unsent(self, epoch: int) -> str:
        names = {found.key_file.key_file for found in self._by_epoch[epoch]}
        rows = sum(
            part.live_rows
            for part in self._state.parts
            if part.key_file in names and not self._is_loaded(part)
        )
        return (
            f"{rows} of its rows cannot be sent"
            if rows
            else "all its rows are in ClickHouse, so only filling a table again is affected"
        )

    def _is_loaded(self, part: Part) -> bool:
        status = self._statuses.get(part.batch_id or "")
        return part.live_rows == 0 or status in (BatchStatus.IN_CLICKHOUSE, BatchStatus.REPLACED)

    def _part(self, part: Part) -> Repair:
        found = self._key_files.get(part.key_file)
        why = self._why_no_raw(found) if found is not None else "its key file has left the window"
        return self._repair(
            FileKind.PART,
            part.part,
            part.file,
            RepairSource.RAW,
            why,
            epoch=found.epoch if found else part.epoch,
            rows=part.rows,
            records=found.key_file.events if found else 0,
            lost=f"{part.live_rows} rows of {part.table} are in ClickHouse already: only sending them again is affected"
            if self._is_loaded(part)
            else f"{part.live_rows} rows of {part.table} are not in ClickHouse yet and cannot be sent",
        )

    def _plan_dead_letters(self, dead_letters: DeadLetterFile) -> Repair:
        why = (
            "edits were made by hand, and no other copy exists"
            if dead_letters.kind is DeadLetterKind.EDIT
            else self._why_not_kafka(dead_letters.epoch)
        )
        return self._repair(
            FileKind.DEAD_LETTERS,
            dead_letters.dead_letter_file,
            dead_letters.file,
            RepairSource.KAFKA,
            why,
            epoch=dead_letters.epoch,
            rows=dead_letters.rows,
            records=self._count_offsets(dead_letters.epoch),
            lost=f"{dead_letters.rows} {dead_letters.kind} letters cannot be shown or tried again",
        )

    def _segment(self, segment: Segment) -> Repair:
        adopted = is_adopted(segment)
        reasons = [] if adopted else list(self._unreadable_keys())
        return self._repair(
            FileKind.SEGMENT,
            segment.segment,
            segment.file,
            RepairSource.CLICKHOUSE if adopted else RepairSource.KEYS,
            reasons[0] if reasons else None,
            epoch=0,
            rows=segment.keys,
            records=segment.keys if adopted else sum(f.key_file.events for f in self._state.key_files),
            lost=f"{segment.keys} ids: nothing can be read, because their duplicates would not be known",
        )

    def _unreadable_keys(self) -> Iterator[str]:
        for found in self._state.key_files:
            if why := self._why_no_keys(found):
                yield f"the key file {found.key_file.key_file} is damaged too, and {why}"
        for epoch, files in self._state.duplicates.items():
            for duplicates in files:
                if self._is_bad(duplicates.file):
                    repair = self._duplicates(epoch, duplicates.rows, duplicates.file)
                    if repair.why:
                        yield f"the duplicates of epoch {epoch} are damaged too, and {repair.why}"
