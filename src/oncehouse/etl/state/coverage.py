"""Which ranges of the main source a topic has covered, and how many rows each had when it was: pure.

Covered ranges (segments) never overlap. What lies between them was never covered: gaps. The number of segments is
bounded: older ones that touch are joined first, so that recent ranges are known finely and old ones coarsely; gaps
never close by that. A source that now holds more rows in a segment than it had then holds late ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from oncehouse.etl.state.position import Position

MOST_SEGMENTS = 32


@dataclass(frozen=True, kw_only=True)
class CoveredRange:
    """Rows after `after`, up to and including `upto`."""

    after: Position
    upto: Position
    rows: int | None
    """Rows of the main source that it had when it was covered; None: unknown until the next count."""
    late: int = 0
    """Rows that came later, by the latest count."""


CoveredRanges = tuple[CoveredRange, ...]


def cover(segments: CoveredRanges, added: CoveredRange) -> CoveredRanges:
    """With a range more; what was known of the same rows before is replaced."""
    if added.after >= added.upto:
        return segments
    apart = (*uncover(segments, added.after, added.upto), added)
    return _coarsen(sorted(apart, key=lambda segment: segment.after))


def uncover(segments: CoveredRanges, after: Position, upto: Position) -> CoveredRanges:
    """Without a range. How many rows the rest of a cut segment has is no longer known."""
    kept: list[CoveredRange] = []
    for segment in segments:
        if segment.upto <= after or segment.after >= upto:
            kept.append(segment)
            continue
        if segment.after < after:
            kept.append(CoveredRange(after=segment.after, upto=after, rows=None))
        if segment.upto > upto:
            kept.append(CoveredRange(after=upto, upto=segment.upto, rows=None))
    return tuple(kept)


def find_gaps(
    segments: CoveredRanges, after: Position, upto: Position
) -> tuple[tuple[Position, Position], ...]:
    """What of a range was never covered, in order."""
    gaps: list[tuple[Position, Position]] = []
    for segment in segments:
        if segment.upto <= after:
            continue
        if segment.after >= upto:
            break
        if segment.after > after:
            gaps.append((after, segment.after))
        after = segment.upto
    if after < upto:
        gaps.append((after, upto))
    return tuple(gaps)


def update_counts(segments: CoveredRanges, counts: Mapping[CoveredRange, int]) -> CoveredRanges:
    """With what the source holds now; segments that have changed since they were counted stay as they are."""
    return tuple(
        _note_count(segment, counts[segment]) if segment in counts else segment for segment in segments
    )


def absorb_late(segments: CoveredRanges) -> CoveredRanges:
    """After everything was rebuilt: what came late is built, too."""
    return tuple(
        segment if segment.rows is None else replace(segment, rows=segment.rows + segment.late, late=0)
        for segment in segments
    )


def count_late(segments: Iterable[CoveredRange]) -> int:
    return sum(segment.late for segment in segments)


def _note_count(segment: CoveredRange, count: int) -> CoveredRange:
    """Fewer rows than before (a TTL, a merge that drops repeats): what comes from now on is counted from there."""
    rows = count if segment.rows is None else min(segment.rows, count)
    return replace(segment, rows=rows, late=count - rows)


def _coarsen(segments: Sequence[CoveredRange]) -> CoveredRanges:
    """Joins pairs that touch, those first that are short for their age."""
    kept = list(segments)
    while len(kept) > MOST_SEGMENTS:
        newest_ms = kept[-1].upto.time_ms
        pairs = [at for at in range(len(kept) - 1) if kept[at].upto == kept[at + 1].after]
        if not pairs:
            break
        at = min(pairs, key=lambda at: _weight(kept[at], kept[at + 1], newest_ms))
        kept[at : at + 2] = [_join(kept[at], kept[at + 1])]
    return tuple(kept)


def _weight(first: CoveredRange, second: CoveredRange, newest_ms: int) -> float:
    return (second.upto.time_ms - first.after.time_ms) / (newest_ms - first.after.time_ms + 1)


def _join(first: CoveredRange, second: CoveredRange) -> CoveredRange:
    rows = None if first.rows is None or second.rows is None else first.rows + second.rows
    return CoveredRange(after=first.after, upto=second.upto, rows=rows, late=first.late + second.late)
