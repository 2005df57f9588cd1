"""Whether the ledger agrees with itself: offsets join, every record is counted once, batches are their parts.

Pure: a ledger's state in, findings out. What retention has dropped is not missed: files go with the oldest
epochs first, and only past the window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

from oncehouse.ledger.catalog.rollup import ROLLED_UP
from oncehouse.ledger.models import BatchStatus, DeadLetterKind, EpochKind, EpochRow, OffsetRange, Part
from oncehouse.ledger.stats.ledger_state import LedgerState
from oncehouse.pipeline.maintenance.verify_report import Note, Subject, VerifyFinding


def check_counts(
    state: LedgerState, *, window_seconds: float, several_rows: bool = False
) -> tuple[VerifyFinding | Note, ...]:
    """`several_rows`: a message may hold several, so that more rows than offsets are no surprise."""
    window_start = state.now - window_seconds
    first_kept = find_first_kept(state)
    entries: list[VerifyFinding | Note] = [*_check_offsets(state), *_check_queries(state)]
    compared = [row for row in state.epochs if row.epoch >= first_kept and row.registered_at >= window_start]
    entries += _check_epochs(state, {row.epoch for row in compared}, several_rows=several_rows)
    entries += _check_batches(state, dropped_some=len(compared) < len(state.epochs))
    early = [
        row.epoch for row in state.epochs if row.epoch < first_kept and row.registered_at >= window_start
    ]
    if early:
        entries.append(
            Note(
                kind=Subject.COUNTS,
                where=f"epochs {early[0]} to {early[-1]}",
                message="their files are gone, as under a shorter identity.window; only counts were compared.",
            )
        )
    return tuple(entries)


def find_first_kept(state: LedgerState) -> int:
    """The oldest epoch whose files are in the ledger; those before it have been dropped, or had none."""
    kept = [registered.epoch for registered in state.key_files]
    kept += [part.epoch for part in state.parts]
    kept += state.duplicates
    return min(kept, default=max((row.epoch for row in state.epochs), default=0) + 1)


def _check_offsets(state: LedgerState) -> Iterator[VerifyFinding]:
    settled: dict[tuple[str, int], list[tuple[int, OffsetRange]]] = defaultdict(list)
    for epoch, span in state.ranges:
        settled[span.topic, span.partition].append((epoch, span))
    for (topic, partition), spans in settled.items():
        where = f"topic {topic} partition {partition}"
        for (first, before), (second, after) in pairwise(spans):
            if before.end != after.start:
                what = "were never settled" if before.end < after.start else "were settled twice"
                low, high = sorted((before.end, after.start))
                yield _offsets(
                    where, f"offsets {low} to {high - 1} {what}, between the epochs {first} and {second}"
                )
        last, position = spans[-1][1].end, state.positions.get((topic, partition))
        if position != last:
            yield _offsets(where, f"the ranges end at offset {last}, but the next epoch starts at {position}")
    known = {ROLLED_UP, *(row.epoch for row in state.epochs)}
    for missing in sorted({epoch for epoch, _ in state.ranges} - known):
        yield _offsets(f"epoch {missing}", "has ranges of offsets, but is not in the ledger itself")


def _check_queries(state: LedgerState) -> Iterator[VerifyFinding]:
    """Every epoch of a frame settles a batch of a query, and no batch is settled twice."""
    frames = {row.epoch for row in state.epochs if row.kind is EpochKind.FRAME}
    for query, spans in state.queries.items():
        for (_, before, first), (after, _, second) in pairwise(spans):
            if after <= before:
                yield _offsets(
                    f"query {query}", f"batch {after} was settled twice, by the epochs {first} and {second}"
                )
        for number, _, epoch in spans:
            if epoch not in frames and epoch != ROLLED_UP:
                yield _offsets(
                    f"query {query}", f"batch {number} is settled by epoch {epoch}, which is none of it"
                )
    named = {epoch for spans in state.queries.values() for _, _, epoch in spans}
    for epoch in sorted(frames - named):
        yield _offsets(f"epoch {epoch}", "holds rows of a frame, but no batch of a query")


def _offsets(where: str, message: str) -> VerifyFinding:
    return VerifyFinding(kind=Subject.OFFSETS, where=where, message=message)


def _check_epochs(state: LedgerState, compared: set[int], *, several_rows: bool) -> Iterator[VerifyFinding]:
    events: dict[int, int] = defaultdict(int)
    for registered in state.key_files:
        events[registered.epoch] += registered.key_file.events
    dead_letters: dict[tuple[int, DeadLetterKind], int] = defaultdict(int)
    for dead_letter_file in state.dead_letter_files:
        dead_letters[dead_letter_file.epoch, dead_letter_file.kind] += dead_letter_file.rows
    offsets: dict[int, int] = defaultdict(int)
    for epoch, span in state.ranges:
        offsets[epoch] += span.end - span.start
    parts: dict[int, list[Part]] = defaultdict(list)
    for part in state.parts:
        parts[part.epoch].append(part)
    for row in state.epochs:
        wrong = list(_differences_of_counts(row, None if several_rows else offsets[row.epoch]))
        if row.epoch in compared:
            wrong += _differences_of_files(row, state, events[row.epoch])
            wrong += _compare_dead_letters(row, dead_letters)
            if row.kind is not EpochKind.REFILL:
                wrong += _differences_of_parts(row, parts[row.epoch], events[row.epoch])
        for message in wrong:
            yield VerifyFinding(kind=Subject.COUNTS, where=f"epoch {row.epoch}", message=message)


def _differences_of_counts(row: EpochRow, offsets: int | None) -> Iterator[str]:
    counts = row.counts
    if not counts.balanced:
        yield (
            f"read {counts.read} records, but new {counts.new} + duplicate {counts.duplicate} + dead letters "
            f"{counts.dead_letter} + skipped {counts.skipped} + waiting {counts.waiting} is another number"
        )
    # Fewer is normal: aborted transactions and compaction leave holes among the offsets.
    if offsets is not None and row.kind is EpochKind.KAFKA and counts.read > offsets:
        yield f"read {counts.read} records out of only {offsets} offsets"


def _differences_of_files(row: EpochRow, state: LedgerState, events: int) -> Iterator[str]:
    counts = row.counts
    if events != counts.new + counts.duplicate:
        settled = f"{counts.new} were new and {counts.duplicate} duplicates"
        yield f"its key files hold {events} events, but {settled}"
    written = sum(file.rows for file in state.duplicates.get(row.epoch, ()))
    if written != counts.duplicate:
        yield f"counted {counts.duplicate} duplicates, but {written} are written down"


def _compare_dead_letters(
    row: EpochRow, dead_letters: Mapping[tuple[int, DeadLetterKind], int]
) -> Iterator[str]:
    dead, waiting = (
        dead_letters.get((row.epoch, kind), 0) for kind in (DeadLetterKind.DEAD, DeadLetterKind.WAITING)
    )
    if dead != row.counts.dead_letter:
        yield f"counted {row.counts.dead_letter} dead letters, but its files hold {dead}"
    if waiting != row.counts.waiting:
        yield f"counted {row.counts.waiting} waiting records, but its files hold {waiting}"


def _differences_of_parts(row: EpochRow, parts: list[Part], events: int) -> Iterator[str]:
    """Every event goes to at least one table; where only one table took any, it took all."""
    rows: dict[str, int] = defaultdict(int)
    live: dict[str, int] = defaultdict(int)
    for part in parts:
        rows[part.table] += part.rows
        live[part.table] += part.live_rows
    if len(rows) > 1:
        for table, taken in rows.items():
            if taken > events or live[table] > row.counts.new:
                yield (
                    f"{table} has {taken} rows, {live[table]} of them live, out of {events} events, "
                    f"{row.counts.new} of them new"
                )
        if sum(rows.values()) >= events and sum(live.values()) >= row.counts.new:
            return
    total_rows, total_live = sum(rows.values()), sum(live.values())
    if total_rows != events:
        yield f"read {events} events, but its parts hold {total_rows} rows"
    if total_live != row.counts.new:
        yield f"counted {row.counts.new} new events, but its parts hold {total_live} live rows"


def _check_batches(state: LedgerState, *, dropped_some: bool) -> Iterator[VerifyFinding]:
    live: dict[str, int] = defaultdict(int)
    for part in state.parts:
        if part.batch_id is not None:
            live[part.batch_id] += part.live_rows
    for batch in state.batches:
        found = live.pop(batch.batch_id, 0)
        # Parts go with the key file they were read with, which may be far older than the batch.
        may_lack = dropped_some and batch.status in (BatchStatus.IN_CLICKHOUSE, BatchStatus.REPLACED)
        if found > batch.rows or (found < batch.rows and not may_lack):
            yield VerifyFinding(
                kind=Subject.COUNTS,
                where=f"batch {batch.batch_id}",
                message=f"has {batch.rows} rows, but its parts have {found} live rows",
            )
    for batch_id, rows in sorted(live.items()):
        yield VerifyFinding(
            kind=Subject.COUNTS,
            where=f"batch {batch_id}",
            message=f"holds parts with {rows} live rows, but is not in the ledger itself",
        )
