"""Whether Kafka's log still holds what was read from it: ends and leader epochs in, a loud stop out. Pure but a clock.

Kafka's own rule (KIP-320): a log holds a record of leader epoch e at an offset if it knows the epoch e and the records
of that epoch end behind the offset. An unclean election makes a log end earlier, and another epoch goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from oncehouse.common.leader_epochs import EpochEnd, Place
from oncehouse.errors import DataLossError, TransientError
from oncehouse.ledger.models import OffsetRange

FIRST_EPOCH = 0
"""That of a partition's first leader: one that was added meanwhile has had no other."""

STALE_SECONDS = 300.0
"""No broker takes itself for the leader for so long while another one is."""

_REMEDY = (
    "Nothing further was read. Put back a catalog from before these offsets were read and let `oncehouse repair` bring "
    "it up to date, or start the pipeline under a new name, with a new ledger and into an empty table: \"When Kafka's "
    'log was cut" in docs/guarantees.md says how.'
)


@dataclass(frozen=True, kw_only=True)
class LogEnd:
    """Where the log of a partition ends, as its leader says."""

    offset: int
    leader_epoch: int | None
    """The leader's own; None where the broker keeps no leader epochs."""


def check_ends(positions: Mapping[Place, int], ends: Mapping[Place, LogEnd]) -> None:
    """Refuse a log that ends before what was read."""
    for (topic, partition), next_offset in positions.items():
        end = ends.get((topic, partition))
        if end is not None and end.offset < next_offset:
            raise DataLossError(
                f"Topic {topic} partition {partition}: Kafka's log ends at offset {end.offset}, but offsets up to "
                f"{next_offset - 1} were read. Kafka has lost the records at offsets {end.offset} to "
                f"{next_offset - 1}, as after an unclean leader election, and will give these offsets to other "
                f"records. {_REMEDY}"
            )


@dataclass(frozen=True, kw_only=True)
class StaleLeaders:
    """Since when leaders answer that are older than the records that were read. Kept over starts of a stream."""

    now: Callable[[], float] = time.monotonic
    since: dict[Place, float] = field(default_factory=dict)

    def see(self, stale: Collection[Place]) -> None:
        for place in self.since.keys() - stale:
            del self.since[place]
        for place in stale:
            self.since.setdefault(place, self.now())

    def seconds(self, place: Place) -> float:
        return self.now() - self.since[place]


def find_doubtful(
    known: Mapping[Place, int], ends: Mapping[Place, LogEnd], stale: StaleLeaders
) -> dict[Place, int]:
    """The known leader epochs of those whose leader has changed since.

    Raises TransientError for a leader that is older than what was read, and DataLossError where it stays the leader.
    """
    leaders = {
        place: now for place in known if place in ends and (now := ends[place].leader_epoch) is not None
    }
    stale.see({place for place, now in leaders.items() if now < known[place]})
    for topic, partition in sorted(stale.since):
        place = topic, partition
        what = (
            f"Topic {topic} partition {partition}: a broker of leader epoch {leaders[place]} answers, but records of "
            f"leader epoch {known[place]} were read"
        )
        if stale.seconds(place) > STALE_SECONDS:
            raise DataLossError(
                f"{what}, and no newer leader has come for {stale.seconds(place):.0f} s: the partition was set back "
                f"to an earlier state, as from a backup, or made by other brokers. {_REMEDY}"
            )
        raise TransientError(
            f"{what}: it does not know yet that it no longer leads. It is asked again; if that goes on for minutes, "
            'the partition was set back to an earlier state: "When Kafka\'s log was cut" in docs/guarantees.md '
            "says what to do."
        )
    return {place: known[place] for place, now in leaders.items() if now != known[place]}


def check_history(
    positions: Mapping[Place, int], doubtful: Mapping[Place, int], found: Mapping[Place, EpochEnd]
) -> None:
    """Refuse a log that holds other records than those that were read. `found`: what it says to each leader epoch."""
    for (topic, partition), answer in found.items():
        epoch, next_offset = doubtful[topic, partition], positions[topic, partition]
        if answer.holds(epoch, next_offset):
            continue
        if 0 <= answer.end < next_offset:
            what = (
                f"the records that were read at offsets {answer.end} to {next_offset - 1} are gone, and other records, "
                "which were never read, have these offsets now"
            )
        else:
            what = (
                f"the records that were read before offset {next_offset} end with leader epoch {epoch}, which the log "
                "no longer knows: some of them are gone, and other records, which were never read, have their offsets"
            )
        raise DataLossError(
            f"Topic {topic} partition {partition}: Kafka's log was cut, as by an unclean leader election: {what}. "
            f"{_REMEDY}"
        )


def check_leaders(
    leaders: Mapping[Place, int | None], ranges: Iterable[OffsetRange], ends: Mapping[Place, LogEnd]
) -> None:
    """Refuse ranges during whose reading a partition got another leader; they are read again."""
    for span in ranges:
        if span.end == span.start:
            continue
        place = span.topic, span.partition
        before, now = leaders.get(place, FIRST_EPOCH), ends[place].leader_epoch
        if now != before:
            raise TransientError(
                f"Topic {span.topic} partition {span.partition}: another broker became the leader (leader epoch "
                f"{now}, before: {before}) while offsets {span.start} to {span.end - 1} were "
                "read. Nothing of this epoch was settled; they are read again."
            )
