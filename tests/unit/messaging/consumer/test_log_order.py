"""Records that took the place of others, told from records that are only given again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from oncehouse.errors import DataLossError
from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.consumer.log_order import LogOrder, cut_log
from oncehouse.messaging.consumer.records import MemoryRecord, Records

HERE = ("t", 3)


@dataclass(frozen=True)
class Record(MemoryRecord):
    epoch: int | None = None

    def leader_epoch(self):
        return self.epoch


def records(first: int, *epochs: int | None) -> Records:
    return Records(
        [Record("t", 3, offset, None, b"", epoch=epoch) for offset, epoch in enumerate(epochs, start=first)]
    )


@pytest.fixture
def order() -> LogOrder:
    order = LogOrder("g")
    order.begin(HERE, CommittedPosition(offset=10, leader_epoch=2))
    return order


def test_records_behind_what_was_read_of_any_leader_are_taken(order):
    order.take(HERE, records(10, 2, 2, 3))
    order.take(HERE, records(13, 3, 7))


def test_records_given_again_are_taken(order):
    order.take(HERE, records(10, 2, 3, 3))
    order.take(HERE, records(9, 2, 2, 3, 3, 4))


def test_records_of_a_later_leader_at_offsets_that_were_read_are_refused(order):
    order.take(HERE, records(10, 2, 2, 2, 2))
    with pytest.raises(
        DataLossError, match=r"group g: t/3: .* other records stand or will stand at offsets 12 to 13 than"
    ):
        order.take(HERE, records(11, 2, 5, 5, 5))


def test_what_was_committed_counts_as_read(order):
    with pytest.raises(DataLossError, match="offsets 8 to 9"):
        order.take(HERE, records(8, 3))


def test_records_that_were_refused_are_taken_once_the_offset_was_set_back(order):
    order.begin(HERE, CommittedPosition(offset=8))
    order.take(HERE, records(8, 3, 3, 3))


def test_nothing_is_refused_where_leader_epochs_are_not_known():
    order = LogOrder("g")
    order.begin(HERE, CommittedPosition(offset=10))
    order.take(HERE, records(8, 3))
    order.begin(HERE, CommittedPosition(offset=10, leader_epoch=2))
    order.take(HERE, records(8, None))
    order.begin(HERE, CommittedPosition())
    order.take(HERE, records(0, 3))


def test_going_back_does_not_forget_how_far_was_read(order):
    order.take(HERE, records(10, 2, 3, 3))
    order.take(HERE, records(4, 1))
    with pytest.raises(DataLossError, match="offsets 5 to 12"):
        order.take(HERE, records(5, 6))


def test_a_cut_whose_place_kafka_does_not_say_is_told_without_offsets():
    said = str(cut_log("g", HERE, 20, 10))
    assert "stand before offset 10 than" in said
    assert "back to before the first of them" in said
