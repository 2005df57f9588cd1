"""Whether records come from the log that was read before, by leader epochs, which never decrease in a log. Pure.

After an unclean leader election the client returns to where the log was truncated. A new record at an offset that was
already read has a later leader epoch than the last record that was read; a record that is read again does not.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from oncehouse.errors import DataLossError
from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.consumer.records import Records
from oncehouse.messaging.failure_policy import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class _LogMark:
    next_offset: int
    leader_epoch: int | None


class LogOrder:
    """How far each partition was read, and the leader epoch of the last record."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._marks: dict[Partition, _LogMark] = {}

    def begin(self, partition: Partition, position: CommittedPosition) -> None:
        if position.offset is None:
            self._marks.pop(partition, None)
        else:
            self._marks[partition] = _LogMark(next_offset=position.offset, leader_epoch=position.leader_epoch)

    def take(self, partition: Partition, records: Records) -> None:
        """Raises DataLossError for records that replace others at the same offsets."""
        mark = self._marks.get(partition)
        if mark is not None and records.first_offset < mark.next_offset:
            self._refuse_others(partition, records, mark)
        if mark is None or records.last_offset >= mark.next_offset:
            self._marks[partition] = _LogMark(
                next_offset=records.last_offset + 1, leader_epoch=records.last_leader_epoch
            )

    def _refuse_others(self, partition: Partition, records: Records, mark: _LogMark) -> None:
        known = mark.leader_epoch
        if known is None:
            return
        repeated = records.raw[: records.count_below(mark.next_offset)]
        same = bisect_right(
            repeated, known, key=lambda raw: known if (e := raw.leader_epoch()) is None else e
        )
        if same == len(repeated):
            return
        raise cut_log(self._group, partition, repeated[same].offset(), mark.next_offset)


def cut_log(group: str, partition: Partition, first: int, next_offset: int) -> DataLossError:
    """`first`: where the log was truncated, if before `next_offset`, up to which records were read."""
    where = (
        f"at offsets {first} to {next_offset - 1}"
        if 0 <= first < next_offset
        else f"before offset {next_offset}"
    )
    to = f"to {first}" if 0 <= first < next_offset else "back to before the first of them"
    return DataLossError(
        f"group {group}: {partition[0]}/{partition[1]}: Kafka's log was cut, as by an unclean leader election: other "
        f"records stand or will stand {where} than those that were read. None of them was handled. Set the group's "
        f"offset of this partition {to} to handle them, and start the consumer again"
    )
