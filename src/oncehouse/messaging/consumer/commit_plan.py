"""The ends of the next batches, stored as metadata of a committed offset.

A batch is handled only after its end was committed, so a consumer that takes the partition over after a crash cuts the
same batches with the same tokens. The text is a prefix and the ends as differences from the offset. The prefix says
whether insert tokens name the group; a partition keeps the kind that it began with, so no batch changes its token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

# For partitions that a group began with version 0.1.0: their tokens do not name the group.
_PREFIX = "oncehouse:"
_GROUP_PREFIX = "oncehouse+group:"
# Kafka limits offset metadata to 4,096 bytes (offset.metadata.max.bytes); 64 differences of 19 digits fit.
MAX_ENDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedPosition:
    offset: int | None = None
    """The first offset that is not handled; None if nothing was committed yet."""
    ends: tuple[int, ...] = ()
    """The last offsets of the batches planned from there, in order."""
    leader_epoch: int | None = field(default=None, compare=False)
    """Kafka's leader epoch of the record before the offset; None if unknown."""
    is_ours: bool = field(default=True, compare=False)
    """Whether an oncehouse consumer committed it. Other clients commit leader epochs that no record may have."""
    names_group: bool = field(default=False, compare=False)
    """Whether the insert tokens of the partition's batches name the group."""


def write_plan(position: CommittedPosition) -> str:
    """The prefix is written without a plan, too: it says that oncehouse committed the offset."""
    if position.offset is None:
        return ""
    steps = pairwise((position.offset, *position.ends))
    return (_GROUP_PREFIX if position.names_group else _PREFIX) + ",".join(
        str(after - before) for before, after in steps
    )


def read_plan(offset: int | None, metadata: str | None) -> CommittedPosition:
    """Read what `write_plan` wrote; other metadata comes from another client and means no plan."""
    text = metadata or ""
    prefix = next((known for known in (_PREFIX, _GROUP_PREFIX) if text.startswith(known)), None)
    if offset is None or prefix is None:
        return CommittedPosition(offset=offset, is_ours=False)
    names_group = prefix == _GROUP_PREFIX
    ends: list[int] = []
    last = offset
    for step in text.removeprefix(prefix).split(","):
        if not (step.isascii() and step.isdigit() and len(step) < 20) or (ends and int(step) == 0):
            return CommittedPosition(offset=offset, names_group=names_group)
        last += int(step)
        ends.append(last)
    return CommittedPosition(offset=offset, ends=tuple(ends), names_group=names_group)
