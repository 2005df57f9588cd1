"""Kafka's leader epochs in the catalog: known for exactly the offset where the ledger ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import insert, update

from ledger_examples import TOPIC, make_registration, take_lease
from oncehouse.ledger.catalog.epochs import list_ranges, read_leader_epochs, read_positions
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.schema import positions, ranges
from oncehouse.ledger.models import OffsetRange, Stage
from oncehouse.ledger.stats.recent import list_epoch_ranges

HERE = (TOPIC, 0)


@pytest.fixture
def token(catalog) -> int:
    return take_lease(catalog, Stage.INGEST)


def settle(catalog, token: int, epoch: int, start: int, end: int, leader_epoch: int | None) -> None:
    span = OffsetRange(topic=TOPIC, partition=0, start=start, end=end, leader_epoch=leader_epoch)
    register(catalog, token, replace(make_registration(epoch, start, end), ranges=(span,)))


def test_the_epoch_of_the_last_range_is_that_of_the_position(catalog, token):
    settle(catalog, token, 1, 0, 10, 3)
    settle(catalog, token, 2, 10, 20, 4)
    assert read_leader_epochs(catalog) == {HERE: 4}
    assert list_epoch_ranges(catalog, 1)[0].leader_epoch == 3
    assert [span.leader_epoch for _, span in list_ranges(catalog)] == [3, 4]


def test_a_range_whose_epoch_is_not_known_makes_the_position_unknown(catalog, token):
    settle(catalog, token, 1, 0, 10, 3)
    settle(catalog, token, 2, 10, 20, None)
    assert read_leader_epochs(catalog) == {}


def test_an_epoch_without_records_leaves_it_as_it_was(catalog, token):
    settle(catalog, token, 1, 0, 10, 3)
    span = OffsetRange(topic=TOPIC, partition=0, start=10, end=10, leader_epoch=None)
    register(catalog, token, replace(make_registration(2, 10, 10), ranges=(span,), key_files=(), parts=()))
    assert read_leader_epochs(catalog) == {HERE: 3}


def test_a_process_of_an_older_version_that_reads_on_leaves_no_epoch_that_is_not_its_own(catalog, token):
    """It knows no such column: it adds ranges without one and moves the position."""
    settle(catalog, token, 1, 0, 10, 3)
    with catalog.engine.begin() as connection:
        connection.execute(
            insert(ranges).values(
                pipeline=catalog.pipeline,
                topic=TOPIC,
                partition_id=0,
                start_offset=10,
                end_offset=20,
                epoch=2,
            )
        )
        connection.execute(update(positions).values(next_offset=20))
    assert read_positions(catalog) == {HERE: 20}
    assert read_leader_epochs(catalog) == {}
