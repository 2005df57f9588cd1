"""Whether too much of an epoch cannot become rows, so that the pipeline stops before it is settled. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncehouse.errors import PoisonError
from oncehouse.ledger.models import DeadLetterKind, EpochKind, Registration

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

_REASONS_SHOWN = 20


def require_few(
    pipeline: Pipeline, registration: Registration, kind: DeadLetterKind, samples: Sequence[str]
) -> None:
    """Stop before a stream of poison is settled as dead letters, or, where that is asked for, before most of a stream
    waits for schemas; those tried again were decided before.
    """
    counts, limits = registration.counts, pipeline.dead_letters
    if kind is DeadLetterKind.WAITING:
        records, limit, option = counts.waiting, limits.max_waiting_share, "dead_letters.max_waiting_share"
        found = "name a schema that is not known"
        advice = (
            "`oncehouse schema add VERSION` makes a version known; or register it, correct the producer, or raise "
            f"{option} (null never stops) to let them wait."
        )
    else:
        records, limit, option = counts.dead_letter, limits.max_share, "dead_letters.max_share"
        found = "cannot be decoded"
        advice = (
            f"Correct source.format or source.fields, or raise {option} (null never stops) to let them become dead "
            "letters."
        )
    share = _share(pipeline, registration, records)
    if limit is not None and share > limit:
        raise PoisonError(
            f"Pipeline {pipeline.pipeline}: {records} of {counts.read} records of this epoch {found} ({share:.0%}, "
            f"{option} is {limit:.0%}): {_describe(registration, kind)}; the first is {samples[0]}. Nothing of it was "
            f"settled. {advice}"
        )


def _share(pipeline: Pipeline, registration: Registration, records: int) -> float:
    """0 where an epoch is not judged: it is small, or its records were settled before."""
    read = registration.counts.read
    if registration.kind not in (EpochKind.KAFKA, EpochKind.FRAME):
        return 0.0
    return 0.0 if read < pipeline.dead_letters.min_records else records / read


def _describe(registration: Registration, kind: DeadLetterKind) -> str:
    """The most frequent reasons, or schemas that are waited for."""
    reasons: Counter[str] = Counter()
    for letters in registration.dead_letter_files:
        if letters.kind is kind:
            reasons.update(letters.reasons)
    more = ", …" if len(reasons) > _REASONS_SHOWN else ""
    shown = reasons.most_common(_REASONS_SHOWN)
    return ", ".join(f"{reason} {number}" for reason, number in shown) + more
