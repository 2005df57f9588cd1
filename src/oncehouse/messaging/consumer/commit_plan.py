"""Where the next batches end, as it is written beside a committed offset.

A batch is handed out only after its end stands in Kafka, so that whoever takes the partition over after a crash cuts
the same batches, and their tokens come again. The text is a prefix and the ends as steps from the offset. The prefix
says whether insert tokens name the group: a partition keeps the kind that it began with, so no batch changes its token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

# Of partitions that a group began with 0.1.0, whose tokens do not name it.
_PREFIX = "oncehouse:"
_GROUP_PREFIX = "oncehouse+group:"
# Kafka keeps at most 4,096 bytes beside an offset (offset.metadata.max.bytes); 64 steps of 19 digits fit.
MAX_ENDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedPosition:
    offset: int | None = None
    """The first offset that is not done; None where nothing was committed yet."""
    ends: tuple[int, ...] = ()
    """The last offsets of the batches planned from there, in order."""
    leader_epoch: int | None = field(default=None, compare=False)
    """Kafka's, of the record before the offset; None where it is not known."""
    is_ours: bool = field(default=True, compare=False)
    """Whether a consumer of ours wrote it. Other clients commit leader epochs that no record may have."""
    names_group: bool = field(default=False, compare=False)
    """Whether the insert tokens of the partition's batches name the group."""


def write_plan(position: CommittedPosition) -> str:
    """The mark stands there without a plan too: it says whose commit it is."""
    if position.offset is None:
        return ""
    steps = pairwise((position.offset, *position.ends))
    return (_GROUP_PREFIX if position.names_group else _PREFIX) + ",".join(
        str(after - before) for before, after in steps
    )


def read_plan(offset: int | None, metadata: str | None) -> CommittedPosition:
    """What `write_plan` wrote; anything else beside an offset is somebody else's and means no plan."""
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
