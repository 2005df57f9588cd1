from __future__ import annotations

import pytest

from ledger_examples import make_registration, take_lease
from oncehouse.errors import BatchSettledError, ConfigurationError
from oncehouse.ledger.catalog import retention as expiry
from oncehouse.ledger.catalog import rollup, schema
from oncehouse.ledger.catalog.epochs import list_epochs
from oncehouse.ledger.catalog.query_batches import is_settled, list_queries, list_settled
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import EpochKind, QueryBatch, Stage
from oncehouse.ledger.stats.ledger_state import read_state
from oncehouse.pipeline.maintenance.verify_counts import check_counts


def batch(number: int, *, query: str = "orders", origin: str = "spark 1") -> QueryBatch:
    return QueryBatch(query=query, batch=number, origin=origin)


def settle(catalog, token: int, epoch: int, asked: QueryBatch) -> None:
    registration = make_registration(epoch, kind=EpochKind.FRAME, ranges=(), topic_ids={}, query=asked)
    register(catalog, token, registration)


def test_a_batch_is_settled_with_its_epoch_and_only_once(catalog):
    token = take_lease(catalog)
    assert not is_settled(catalog, batch(0))
    settle(catalog, token, 1, batch(0))
    assert is_settled(catalog, batch(0))
    assert not is_settled(catalog, batch(1))
    with pytest.raises(BatchSettledError, match="batch 0 of query orders"):
        settle(catalog, token, 2, batch(0))
    assert len(list_epochs(catalog)) == 1


def test_batches_of_a_query_may_come_in_any_order_and_queries_do_not_meet(catalog):
    token = take_lease(catalog)
    for epoch, asked in enumerate([batch(5), batch(2), batch(2, query="other")], start=1):
        settle(catalog, token, epoch, asked)
    assert list_settled(catalog) == {"orders": ((2, 2, 2), (5, 5, 1)), "other": ((2, 2, 3),)}
    assert set(list_queries(catalog)) == {"orders", "other"}


def test_batches_that_somebody_else_counts_are_refused(catalog):
    token = take_lease(catalog)
    settle(catalog, token, 1, batch(0))
    with pytest.raises(ConfigurationError, match="counted by spark 1, and these by spark 2"):
        is_settled(catalog, batch(1, origin="spark 2"))
    with pytest.raises(ConfigurationError, match="new name"):
        settle(catalog, token, 2, batch(1, origin="spark 2"))


def test_batches_past_the_window_become_one_row_and_stay_settled(catalog):
    token = take_lease(catalog)
    for epoch, number in enumerate([0, 1, 2, 4, 7], start=1):
        settle(catalog, token, epoch, batch(number))
    retention = take_lease(catalog, Stage.RETENTION)

    catalog.change(lambda connection: connection.execute(schema.parts.delete()))
    expiry.drop_key_files(catalog, retention, before=1e12)
    assert rollup.roll_up_epochs(catalog, retention, before=1e12) == 4
    rolled_up = rollup.ROLLED_UP
    assert list_settled(catalog) == {"orders": ((0, 2, rolled_up), (4, 4, rolled_up), (7, 7, 5))}
    assert [is_settled(catalog, batch(number)) for number in range(8)] == [
        True,
        True,
        True,
        False,
        True,
        False,
        False,
        True,
    ]


def test_verify_names_epochs_without_a_batch_and_batches_without_an_epoch(catalog):
    token = take_lease(catalog)
    settle(catalog, token, 1, batch(0))
    assert not [
        told for told in check_counts(read_state(catalog), window_seconds=60) if told.kind == "offsets"
    ]
    register(catalog, token, make_registration(2, kind=EpochKind.FRAME, ranges=(), topic_ids={}))
    moved = schema.query_batches.update().values(epoch=7)
    catalog.change(lambda connection: connection.execute(moved))
    told = {found.where: found.message for found in check_counts(read_state(catalog), window_seconds=60)}
    assert told["query orders"] == "batch 0 is settled by epoch 7, which is none of it"
    assert told["epoch 2"] == "holds rows of a frame, but no batch of a query"
