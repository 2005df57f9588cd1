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


def require_few_dead_letters(pipeline: Pipeline, registration: Registration, samples: Sequence[str]) -> None:
    """Stop before a stream of poison is settled as dead letters; those tried again were decided before."""
    counts, limit = registration.counts, pipeline.dead_letters.max_share
    share = _share(pipeline, registration, counts.dead_letter)
    if limit is not None and share > limit:
        raise PoisonError(
            f"Pipeline {pipeline.pipeline}: {counts.dead_letter} of {counts.read} records of this epoch cannot be "
            f"decoded ({share:.0%}, dead_letters.max_share is {limit:.0%}): "
            f"{_describe(registration, DeadLetterKind.DEAD)}; the first is "
            f"{samples[0]}. Nothing of it was settled. Correct "
            "source.format or source.fields, or raise dead_letters.max_share (null never stops) to let them "
            "become dead letters."
        )


def require_few_waiting(pipeline: Pipeline, registration: Registration, samples: Sequence[str]) -> None:
    """Stop before most of a stream waits for schemas, where that is asked for."""
    counts, limit = registration.counts, pipeline.dead_letters.max_waiting_share
    share = _share(pipeline, registration, counts.waiting)
    if limit is not None and share > limit:
        raise PoisonError(
            f"Pipeline {pipeline.pipeline}: {counts.waiting} of {counts.read} records of this epoch name a schema that "
            f"is not known ({share:.0%}, dead_letters.max_waiting_share is {limit:.0%}): "
            f"{_describe(registration, DeadLetterKind.WAITING)}; the first is {samples[0]}. Nothing of it was settled. "
            "`oncehouse schema add VERSION` makes a version known; or register it, correct the producer, or raise "
            "dead_letters.max_waiting_share (null never stops) to let them wait."
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
