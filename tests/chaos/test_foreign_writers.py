"""Others write into the table until it has forgotten a batch's token, between a lost answer and the retry."""

from __future__ import annotations

import threading

import pytest
from defective_loader import insert_what_is_there, overlook_foreign_blocks
from late_world import push_token_out

from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import BatchStatus
from oncehouse.pipeline.stages import load_stage
from road import Road, make_event, wait_until

EVENTS = [make_event(number) for number in range(100)]


def lose_an_answer(
    road: Road, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, *, meanwhile: str = ""
) -> None:
    """The answer to an INSERT is lost, and others write before the retry looks."""
    may_go_on = threading.Event()
    right = load_stage.Loading._facts_for

    def wait_before_retry(self, batch):
        assert not batch.attempts or may_go_on.wait(240)
        return right(self, batch)

    monkeypatch.setattr(load_stage.Loading, "_facts_for", wait_before_retry)
    # So that the table remembers little more than a thousand blocks, which is the least that `check` accepts.
    road.document["clickhouse"]["insert_timeout"] = 50
    road.create_tables()
    road.go_through(proxy)
    road.send(EVENTS)
    proxy.inject(DropAnswer())
    with road.start():
        try:
            wait_until(lambda: proxy.happened[DropAnswer], "an answer that is lost")
            wait_until(lambda: road.batches(statuses=[BatchStatus.RETRY]), "an attempt of unknown outcome")
            push_token_out(road, also_delete=meanwhile)
        finally:
            may_go_on.set()
        wait_until(lambda: not road.batches(statuses=batches.WAITING), "the retry")


@pytest.mark.scenario("foreign writers push the token out")
@pytest.mark.parametrize("view", [True, False], ids=["with a view", "without a view"])
def test_a_batch_that_is_there_is_not_inserted_again_when_others_pushed_its_token_out(
    make_road, proxy, monkeypatch, view
):
    road = make_road(tables=False)
    with_view(road, monkeypatch, view=view)
    lose_an_answer(road, proxy, monkeypatch)
    road.assert_exact()
    (batch,) = road.batches()
    outcomes = [found.outcome for found in batches.list_attempts(road.catalog, batch.batch_id)]
    # The query log has the first insert as done, so its view is known to have the rows.
    assert outcomes == ["unknown", "already there"]


@pytest.mark.scenario("foreign writers push the token out")
def test_a_batch_that_is_there_in_part_is_parked_when_others_pushed_its_token_out(
    make_road, proxy, monkeypatch
):
    road = make_road(tables=False)
    lose_an_answer(road, proxy, monkeypatch, meanwhile="OR product_id < 5")
    (parked,) = road.batches(statuses=[BatchStatus.PARKED])
    assert "95 of its 100 rows" in (parked.reason or "")
    assert len(road.rows()) == 95


def with_view(road: Road, monkeypatch: pytest.MonkeyPatch, *, view: bool) -> None:
    """Let the table be made together with a view, where one is wanted."""
    right = road.create_tables

    def create() -> None:
        right()
        if view:
            road.create_view()

    monkeypatch.setattr(road, "create_tables", create)


@pytest.mark.defect("foreign writers push the token out")
def test_a_loader_that_inserts_what_is_there_for_the_sake_of_its_view_is_noticed(
    make_road, proxy, monkeypatch
):
    insert_what_is_there(monkeypatch)
    road = make_road(tables=False)
    with_view(road, monkeypatch, view=True)
    lose_an_answer(road, proxy, monkeypatch)
    with pytest.raises(AssertionError, match="100 rows are doubled"):
        road.assert_exact()


@pytest.mark.defect("foreign writers push the token out")
def test_a_loader_that_counts_its_own_blocks_only_is_noticed(make_road, proxy, monkeypatch):
    overlook_foreign_blocks(monkeypatch)
    road = make_road(tables=False)
    lose_an_answer(road, proxy, monkeypatch, meanwhile="OR product_id < 5")
    with pytest.raises(AssertionError, match="95 rows are doubled"):
        road.assert_exact()
