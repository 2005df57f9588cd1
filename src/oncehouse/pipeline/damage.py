"""What is damaged, from where it can be made again, what that costs, and what is lost where it cannot be. Pure.

A ledger's state, the files found wanting and what Kafka still has go in, frozen repairs come out. A file is made again
from the next better source: raw bytes from Kafka, ids from raw bytes, positions of duplicates and the key index from
ids, parts from raw bytes. `restoring.py` performs what is planned here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from oncehouse.ledger.audit import LedgerState, RegisteredKeyFile
from oncehouse.ledger.records import (
    BatchStatus,
    DeadLetterFile,
    EpochKind,
    FileRef,
    LetterKind,
    OffsetRange,
    Part,
    Segment,
)
from oncehouse.ledger.segments import is_adopted


class FileKind(StrEnum):
    """In the order in which they are made again: each needs those before it."""

    RAW = "raw bytes"
    KEYS = "key file"
    DUPLICATES = "duplicates"
    PART = "part"
    LETTERS = "dead letters"
    SEGMENT = "segment"


class Source(StrEnum):
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
    """Events, rows, positions, letters or ids that it holds."""
    source: Source | None
    """None: it cannot be made again, and `why` tells the reason."""
    why: str | None = None
    records: int = 0
    """What has to be read for it: offsets of Kafka, or events of the ledger."""
    ranges: tuple[OffsetRange, ...] = ()
    """The offsets that its epoch settled."""
    lost: str
    """What cannot be done as long as it is not made again."""


@dataclass(frozen=True, kw_only=True)
class KafkaFacts:
    """What Kafka still has of the topics that the ledger knows."""

    earliest: Mapping[tuple[str, int], int] = field(default_factory=dict)
    latest: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Where each partition ends now."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Topics that cannot be read again, and why."""


def missing_offsets(ranges: Sequence[OffsetRange], kafka: KafkaFacts) -> Iterator[str]:
    """Why offsets cannot be read again; nothing where all can."""
    for span in ranges:
        if span.topic in kafka.unfit:
            yield kafka.unfit[span.topic]
        elif (oldest := kafka.earliest.get((span.topic, span.partition))) is None:
            yield f"topic {span.topic} has no partition {span.partition}"
        elif oldest > span.start:
            last = min(oldest, span.end) - 1
            yield (
                f"Kafka has deleted the offsets {span.start} to {last} of topic {span.topic} partition "
                f"{span.partition}"
            )


def plan_repairs(
    state: LedgerState, damaged: Mapping[str, str], kafka: KafkaFacts, *, rekeyed_at: float | None = None
) -> tuple[Repair, ...]:
    """`damaged`: what is wrong with each path. `rekeyed_at`: when ids were last made by another rule."""
    return tuple(_Planner(state, damaged, kafka, rekeyed_at).plan()) if damaged else ()


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
        yield from (self._letters(found) for found in state.dead_letter_files if self._is_bad(found.file))
        yield from (self._segment(found) for found in state.segments if self._is_bad(found.file))

    def _is_bad(self, file: FileRef) -> bool:
        return file.path in self._damaged

    def _why_not_kafka(self, epoch: int) -> str | None:
        if (kind := self._kinds.get(epoch)) is not EpochKind.KAFKA:
            return f"its records were not read from Kafka (epoch {epoch} is of the kind {kind or 'unknown'})"
        return "; ".join(missing_offsets(self._ranges[epoch], self._kafka)) or None

    def _why_no_raw(self, found: RegisteredKeyFile) -> str | None:
        return self._why_not_kafka(found.epoch) if self._is_bad(found.key_file.raw) else None

    def _offsets(self, epoch: int) -> tuple[tuple[OffsetRange, ...], int]:
        spans = tuple(self._ranges[epoch])
        return spans, sum(span.end - span.start for span in spans)

    def _raw(self, found: RegisteredKeyFile) -> Repair:
        key_file, why = found.key_file, self._why_not_kafka(found.epoch)
        spans, records = self._offsets(found.epoch)
        return Repair(
            kind=FileKind.RAW,
            name=key_file.key_file,
            epoch=found.epoch,
            file=key_file.raw,
            problem=self._damaged[key_file.raw.path],
            rows=key_file.events,
            source=None if why else Source.KAFKA,
            why=why,
            records=records,
            ranges=spans,
            lost=f"the bytes of {key_file.events} events: no table can be filled with them anew and the identity rule "
            "cannot be changed; what is in parts and in ClickHouse is not affected",
        )

    def _keys(self, found: RegisteredKeyFile) -> Repair:
        key_file, why = found.key_file, self._why_no_raw(found)
        spans, _ = self._offsets(found.epoch)
        return Repair(
            kind=FileKind.KEYS,
            name=key_file.key_file,
            epoch=found.epoch,
            file=key_file.keys,
            problem=self._damaged[key_file.keys.path],
            rows=key_file.events,
            source=None if why else Source.RAW,
            why=why,
            records=key_file.events,
            ranges=spans,
            lost=f"the ids of {key_file.events} events: the key index, which has them too, cannot be made anew",
        )

    def _duplicates(self, epoch: int, rows: int, file: FileRef) -> Repair:
        spans, _ = self._offsets(epoch)
        why = next(
            filter(None, (self._why_no_keys(found) for found in self._by_epoch[epoch])), None
        ) or self._why_other_ids(epoch)
        return Repair(
            kind=FileKind.DUPLICATES,
            name=f"epoch {epoch}",
            epoch=epoch,
            file=file,
            problem=self._damaged[file.path],
            rows=rows,
            source=None if why else Source.KEYS,
            why=why,
            records=sum(found.key_file.events for found in self._state.key_files if found.epoch <= epoch),
            ranges=spans,
            lost=f"which {rows} of the epoch's events are duplicates: {self._tell_unsent(epoch)}",
        )

    def _why_no_keys(self, found: RegisteredKeyFile) -> str | None:
        return self._why_no_raw(found) if self._is_bad(found.key_file.keys) else None

    def _why_other_ids(self, epoch: int) -> str | None:
        if self._rekeyed_at is not None and self._registered_at.get(epoch, 0.0) <= self._rekeyed_at:
            return "the identity rule was changed since, so the ids do not tell what was a duplicate then"
        return None

    def _tell_unsent(self, epoch: int) -> str:
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
        spans, _ = self._offsets(found.epoch if found else part.epoch)
        return Repair(
            kind=FileKind.PART,
            name=part.part,
            epoch=found.epoch if found else part.epoch,
            file=part.file,
            problem=self._damaged[part.file.path],
            rows=part.rows,
            source=None if why else Source.RAW,
            why=why,
            records=found.key_file.events if found else 0,
            ranges=spans,
            lost=f"{part.live_rows} rows of {part.table} are in ClickHouse already: only sending them again is affected"
            if self._is_loaded(part)
            else f"{part.live_rows} rows of {part.table} are not in ClickHouse yet and cannot be sent",
        )

    def _letters(self, letters: DeadLetterFile) -> Repair:
        spans, records = self._offsets(letters.epoch)
        why = (
            "edits are a person's work, and nobody else has them"
            if letters.kind is LetterKind.EDIT
            else self._why_not_kafka(letters.epoch)
        )
        return Repair(
            kind=FileKind.LETTERS,
            name=letters.dead_letter_file,
            epoch=letters.epoch,
            file=letters.file,
            problem=self._damaged[letters.file.path],
            rows=letters.rows,
            source=None if why else Source.KAFKA,
            why=why,
            records=records,
            ranges=spans,
            lost=f"{letters.rows} {letters.kind} letters cannot be shown or tried again",
        )

    def _segment(self, segment: Segment) -> Repair:
        adopted = is_adopted(segment)
        reasons = [] if adopted else list(self._unreadable_keys())
        return Repair(
            kind=FileKind.SEGMENT,
            name=segment.segment,
            epoch=0,
            file=segment.file,
            problem=self._damaged[segment.file.path],
            rows=segment.keys,
            source=None if reasons else Source.CLICKHOUSE if adopted else Source.KEYS,
            why=reasons[0] if reasons else None,
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
