"""What Kafka still has of the topics that a ledger knows, and which offsets cannot be read again. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from oncehouse.ledger.models import OffsetRange


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
