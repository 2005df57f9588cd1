"""Others write into the table until it has forgotten a batch's token, between a lost answer and the retry."""

from __future__ import annotations

import threading

import pytest
from defective_loader import insert_what_is_there, overlook_foreign_blocks
from late_inserts import push_token_out

from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import BatchStatus
from oncehouse.pipeline.stages import load_stage

EVENTS = [make_event(number) for number in range(100)]


def lose_an_answer(
    live_pipeline: LivePipeline, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, *, meanwhile: str = ""
) -> None:
    """The answer to an INSERT is lost, and others write before the retry looks."""
    may_go_on = threading.Event()
    right = load_stage.LoadStage._facts_for

    def wait_before_retry(self, batch):
        assert not batch.attempts or may_go_on.wait(240)
        return right(self, batch)

    monkeypatch.setattr(load_stage.LoadStage, "_facts_for", wait_before_retry)
    # So that the table remembers little more than a thousand blocks, which is the least that `check` accepts.
    live_pipeline.document["clickhouse"]["insert_timeout"] = 50
    live_pipeline.create_tables()
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS)
    proxy.inject(DropAnswer())
    with live_pipeline.start():
        try:
            wait_until(lambda: proxy.happened[DropAnswer], "an answer that is lost")
            wait_until(
                lambda: live_pipeline.batches(statuses=[BatchStatus.RETRY]), "an attempt of unknown outcome"
            )
            push_token_out(live_pipeline, also_delete=meanwhile)
        finally:
            may_go_on.set()
        wait_until(lambda: not live_pipeline.batches(statuses=batches.WAITING), "the retry")


@pytest.mark.scenario("foreign writers push the token out")
@pytest.mark.parametrize("view", [True, False], ids=["with a view", "without a view"])
def test_a_batch_that_is_there_is_not_inserted_again_when_others_pushed_its_token_out(
    make_pipeline, proxy, monkeypatch, view
):
    live_pipeline = make_pipeline(tables=False)
    with_view(live_pipeline, monkeypatch, view=view)
    lose_an_answer(live_pipeline, proxy, monkeypatch)
    live_pipeline.assert_exact()
    (batch,) = live_pipeline.batches()
    outcomes = [found.outcome for found in batches.list_attempts(live_pipeline.catalog, batch.batch_id)]
    # The query log has the first insert as done, so its view is known to have the rows.
    assert outcomes == ["unknown", "already there"]


@pytest.mark.scenario("foreign writers push the token out")
def test_a_batch_that_is_there_in_part_is_parked_when_others_pushed_its_token_out(
    make_pipeline, proxy, monkeypatch
):
    live_pipeline = make_pipeline(tables=False)
    lose_an_answer(live_pipeline, proxy, monkeypatch, meanwhile="OR product_id < 5")
    (parked,) = live_pipeline.batches(statuses=[BatchStatus.PARKED])
    assert "95 of its 100 rows" in (parked.reason or "")
    assert len(live_pipeline.rows()) == 95


def with_view(live_pipeline: LivePipeline, monkeypatch: pytest.MonkeyPatch, *, view: bool) -> None:
    """Let the table be made together with a view, where one is wanted."""
    right = live_pipeline.create_tables

    def create() -> None:
        right()
        if view:
            live_pipeline.create_view()

    monkeypatch.setattr(live_pipeline, "create_tables", create)


@pytest.mark.defect("foreign writers push the token out")
def test_a_loader_that_inserts_what_is_there_for_the_sake_of_its_view_is_noticed(
    make_pipeline, proxy, monkeypatch
):
    insert_what_is_there(monkeypatch)
    live_pipeline = make_pipeline(tables=False)
    with_view(live_pipeline, monkeypatch, view=True)
    lose_an_answer(live_pipeline, proxy, monkeypatch)
    with pytest.raises(AssertionError, match="100 rows are doubled"):
        live_pipeline.assert_exact()


@pytest.mark.defect("foreign writers push the token out")
def test_a_loader_that_counts_its_own_blocks_only_is_noticed(make_pipeline, proxy, monkeypatch):
    overlook_foreign_blocks(monkeypatch)
    live_pipeline = make_pipeline(tables=False)
    lose_an_answer(live_pipeline, proxy, monkeypatch, meanwhile="OR product_id < 5")
    with pytest.raises(AssertionError, match="95 rows are doubled"):
        live_pipeline.assert_exact()
