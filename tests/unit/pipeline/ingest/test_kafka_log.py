"""The comparison of Kafka's log with what was read, over a simulated partition on two replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.common.leader_epochs import EpochEnd
from oncehouse.errors import DataLossError, TransientError
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.ingest.kafka_log import KafkaLog
from oncehouse.pipeline.ingest.log_history import LogEnd, StaleLeaders

HERE = ("t", 0)

Record = tuple[int, int]
"""(leader epoch, a number of its own)"""


class Partition:
    """Two replicas as Kafka keeps them: records with leader epochs, and where each epoch begins."""

    def __init__(self) -> None:
        self.logs: list[list[Record]] = [[], []]
        self.leader, self.epoch, self._numbers = 0, 0, 0
        self.starts: list[dict[int, int]] = [{0: 0}, {}]
        self.log_start = 0
        self.asked = 0

    @property
    def log(self) -> list[Record]:
        return self.logs[self.leader]

    def append(self, count: int) -> None:
        for _ in range(count):
            self._numbers += 1
            self.log.append((self.epoch, self._numbers))

    def replicate(self) -> None:
        other, log = self.logs[1 - self.leader], self.log
        same = 0
        while same < min(len(other), len(log)) and other[same] == log[same]:
            same += 1
        other[same:] = log[same:]
        starts: dict[int, int] = {}
        for offset, (epoch, _) in enumerate(other):
            starts.setdefault(epoch, offset)
        self.starts[1 - self.leader] = starts

    def elect_other(self) -> None:
        self.leader, self.epoch = 1 - self.leader, self.epoch + 1
        end = len(self.log)
        kept = {epoch: start for epoch, start in self.starts[self.leader].items() if start < end}
        self.starts[self.leader] = kept | {self.epoch: end}

    def delete_before(self, offset: int) -> None:
        """As retention does: epochs that end before are forgotten, the one in force begins there."""
        self.log_start = offset
        starts = self.starts[self.leader]
        before = {epoch: start for epoch, start in starts.items() if start <= offset}
        after = {epoch: start for epoch, start in starts.items() if start > offset}
        self.starts[self.leader] = ({max(before): offset} if before else {}) | after

    # What it answers

    def ends(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogEnd]:
        return {place: LogEnd(offset=len(self.log), leader_epoch=self.epoch) for place in partitions}

    def epoch_ends(self, asked: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], EpochEnd]:
        self.asked += bool(asked)
        return {place: self._end(epoch) for place, epoch in asked.items()}

    def _end(self, asked: int) -> EpochEnd:
        starts = self.starts[self.leader]
        if asked == max(starts):
            return EpochEnd(epoch=asked, end=len(self.log))
        later = [epoch for epoch in starts if epoch > asked]
        if not later:
            return EpochEnd(epoch=-1, end=-1)
        up_to = [epoch for epoch in starts if epoch <= asked]
        return EpochEnd(epoch=max(up_to, default=asked), end=starts[min(later)])


class Reader:
    """What a pipeline has settled of it, and how it goes on after each start."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.read: list[Record] = []
        self.epoch: int | None = None
        self.log: KafkaLog | None = None

    def start(self) -> None:
        known = {} if self.epoch is None else {HERE: self.epoch}
        self.log = None
        self.log = KafkaLog(self.partition, {HERE: len(self.read)}, known)

    def settle(self, upto: int) -> None:
        if self.log is None:
            self.start()
        begin, end = len(self.read), min(upto, len(self.partition.log))
        if end <= begin:
            return
        span = OffsetRange(topic="t", partition=0, start=begin, end=end)
        try:
            (confirmed,) = self.log.confirm((span,))
        except TransientError:
            self.start()
            return
        self.read += self.partition.log[begin:end]
        self.epoch = confirmed.leader_epoch

    @property
    def is_right(self) -> bool:
        return self.partition.log[: len(self.read)] == self.read


def stops(act: Callable[[], None]) -> bool:
    try:
        act()
    except DataLossError:
        return True
    return False


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.integers(1, 30)),
        st.tuples(st.sampled_from(["replicate", "elect", "fail over", "start"]), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=400)
@given(STEPS)
def test_the_reader_stops_exactly_where_the_log_is_not_the_one_it_read(steps):
    partition = Partition()
    reader = Reader(partition)
    for step, number in [*steps, ("start", 0)]:
        match step:
            case "append":
                partition.append(number)
            case "replicate":
                partition.replicate()
            case "elect":
                partition.elect_other()
            case "fail over":
                partition.replicate()
                partition.elect_other()
            case _:
                was_right = reader.is_right
                if stops(reader.start if step == "start" else partial(reader.settle, number)):
                    assert not was_right, "a false alarm"
                    return
                assert reader.log is None or step == "settle" or was_right, "a cut log was not noticed"
                if reader.epoch is not None:
                    assert reader.epoch == reader.read[-1][0], "not the epoch of the last record"


@given(STEPS)
def test_nothing_that_was_settled_is_of_another_log_than_what_was_settled_before(steps):
    """However often the log is cut while the reader is at work: what it has is always the head of one log."""
    partition = Partition()
    reader = Reader(partition)
    for step, number in steps:
        match step:
            case "append":
                partition.append(number)
            case "replicate":
                partition.replicate()
            case "elect":
                partition.elect_other()
            case "fail over":
                partition.replicate()
                partition.elect_other()
            case _:
                before = len(reader.read)
                if stops(partial(reader.settle, number)):
                    return
                if len(reader.read) > before:
                    assert reader.is_right, "records of two logs were settled one after the other"


def test_a_clean_change_of_leaders_between_two_starts_is_no_alarm():
    partition = Partition()
    partition.append(10)
    reader = Reader(partition)
    reader.settle(10)
    partition.replicate()
    partition.elect_other()
    reader.start()
    partition.append(5)
    reader.settle(15)
    assert (len(reader.read), reader.epoch) == (15, 1)


def test_the_offsets_that_are_gone_are_named():
    partition = Partition()
    partition.append(4)
    partition.replicate()
    partition.append(6)
    reader = Reader(partition)
    reader.settle(10)
    partition.elect_other()
    partition.append(20)
    with pytest.raises(DataLossError, match=r"Topic t partition 0: .* read at offsets 4 to 9 are gone"):
        reader.start()


def test_the_return_of_a_leader_that_was_passed_over_is_noticed_though_its_log_is_longer():
    """Its records at these offsets are older than the ones that were read."""
    partition = Partition()
    partition.append(6)
    partition.replicate()
    partition.append(4)
    partition.elect_other()
    partition.append(3)
    reader = Reader(partition)
    reader.settle(9)
    partition.elect_other()
    with pytest.raises(
        DataLossError, match="before offset 9 end with leader epoch 1, which the log no longer knows"
    ):
        reader.start()


def test_a_log_that_is_shorter_than_what_was_read_is_refused_without_leader_epochs_too():
    partition = Partition()
    partition.append(4)
    with pytest.raises(DataLossError, match="ends at offset 4, but offsets up to 9 were read"):
        KafkaLog(partition, {HERE: 10}, {})


def test_a_broker_that_does_not_know_yet_that_it_no_longer_leads_is_asked_again_later():
    partition = Partition()
    partition.append(4)
    with pytest.raises(TransientError, match="no longer leads"):
        KafkaLog(partition, {HERE: 10}, {HERE: 3})


def test_a_leader_that_stays_older_than_what_was_read_is_of_another_log():
    partition = Partition()
    partition.append(10)
    now = [1000.0]
    stale = StaleLeaders(now=lambda: now[0])
    for _ in range(3):
        with pytest.raises(TransientError, match="It is asked again"):
            KafkaLog(partition, {HERE: 10}, {HERE: 3}, stale)
        now[0] += 100
    now[0] += 1
    with pytest.raises(
        DataLossError, match=r"leader epoch 3 were read, and no newer leader.*oncehouse repair"
    ):
        KafkaLog(partition, {HERE: 10}, {HERE: 3}, stale)


def test_a_leader_that_has_caught_up_is_given_its_time_again():
    partition = Partition()
    partition.append(10)
    now = [1000.0]
    stale = StaleLeaders(now=lambda: now[0])
    with pytest.raises(TransientError):
        KafkaLog(partition, {HERE: 10}, {HERE: 3}, stale)
    KafkaLog(partition, {HERE: 10}, {HERE: 0}, stale)
    now[0] += 1000
    with pytest.raises(TransientError):
        KafkaLog(partition, {HERE: 10}, {HERE: 3}, stale)


def test_another_leader_where_nothing_was_read_is_no_cause_to_read_again():
    partition = Partition()
    partition.append(3)
    log = KafkaLog(partition, {HERE: 3}, {HERE: 0})
    partition.replicate()
    partition.elect_other()
    (span,) = log.confirm((OffsetRange(topic="t", partition=0, start=3, end=3),))
    assert span.leader_epoch == 0
    partition.append(1)
    with pytest.raises(TransientError, match="became the leader"):
        log.confirm((OffsetRange(topic="t", partition=0, start=3, end=4),))


def test_what_retention_deletes_is_no_alarm():
    partition = Partition()
    partition.append(10)
    reader = Reader(partition)
    reader.settle(10)
    partition.replicate()
    partition.elect_other()
    partition.append(10)
    partition.delete_before(10)
    reader.start()


def test_a_reader_that_keeps_up_asks_for_epochs_once_a_start_at_most():
    partition = Partition()
    for _ in range(20):
        partition.append(2)
        partition.replicate()
        partition.elect_other()
    partition.append(5)
    reader = Reader(partition)
    reader.settle(45)
    first = partition.asked
    for _ in range(10):
        partition.append(1)
        reader.settle(100)
    assert partition.asked == first == 1


def test_a_backlog_of_many_leaders_is_bisected():
    partition = Partition()
    for _ in range(500):
        partition.append(2)
        partition.replicate()
        partition.elect_other()
    reader = Reader(partition)
    reader.settle(77)
    assert reader.epoch == partition.log[76][0]
    assert partition.asked < 12


def test_a_broker_without_leader_epochs_is_held_to_the_end_of_its_log_alone():
    class Old(Partition):
        def ends(self, partitions):
            return {place: LogEnd(offset=len(self.log), leader_epoch=None) for place in partitions}

    partition = Old()
    partition.append(10)
    reader = Reader(partition)
    reader.settle(10)
    assert reader.epoch is None
    partition.logs[0] = []
    with pytest.raises(DataLossError):
        reader.start()


def test_a_partition_that_was_added_while_the_stream_runs_is_known_at_once():
    partition = Partition()
    log = KafkaLog(partition, {}, {})
    partition.append(3)
    (span,) = log.confirm((OffsetRange(topic="t", partition=0, start=0, end=3),))
    assert span.leader_epoch == 0


def test_a_partition_that_was_added_and_has_had_several_leaders_is_read_again():
    partition = Partition()
    log = KafkaLog(partition, {}, {})
    partition.append(3)
    partition.replicate()
    partition.elect_other()
    with pytest.raises(TransientError, match="became the leader"):
        log.confirm((OffsetRange(topic="t", partition=0, start=0, end=3),))
