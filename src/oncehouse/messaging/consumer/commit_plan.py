"""Where the next batches end, as it is written beside a committed offset.

A batch is handed out only after its end stands in Kafka, so that whoever takes the partition over after a crash cuts
the same batches, and their tokens come again. The text is `oncehouse:` and the ends as steps from the offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

_PREFIX = "oncehouse:"
# Kafka keeps at most 4,096 bytes beside an offset (offset.metadata.max.bytes); 64 steps of 19 digits fit.
MAX_ENDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    offset: int | None = None
    """The first offset that is not done; None where nothing was committed yet."""
    ends: tuple[int, ...] = ()
    """The last offsets of the batches planned from there, in order."""
    leader_epoch: int | None = field(default=None, compare=False)
    """Kafka's, of the record before the offset; None where it is not known."""
    is_ours: bool = field(default=True, compare=False)
    """Whether a consumer of ours wrote it. Other clients commit leader epochs that no record may have."""


def write_plan(position: Position) -> str:
    """The mark stands there without a plan too: it says whose commit it is."""
    if position.offset is None:
        return ""
    steps = pairwise((position.offset, *position.ends))
    return _PREFIX + ",".join(str(after - before) for before, after in steps)


def read_plan(offset: int | None, metadata: str | None) -> Position:
    """What `write_plan` wrote; anything else beside an offset is somebody else's and means no plan."""
    if offset is None or not (metadata or "").startswith(_PREFIX):
        return Position(offset=offset, is_ours=False)
    ends: list[int] = []
    last = offset
    for step in (metadata or "").removeprefix(_PREFIX).split(","):
        if not (step.isascii() and step.isdigit() and len(step) < 20) or (ends and int(step) == 0):
            return Position(offset=offset)
        last += int(step)
        ends.append(last)
    return Position(offset=offset, ends=tuple(ends))
