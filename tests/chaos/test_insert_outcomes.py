"""Nobody knows what became of an INSERT: cut, half done, its token forgotten, its driver dead. One copy arrives.

Faults between loader and ClickHouse are the proxy's; a batch that fails between two partitions of its table fails in
the server itself.
"""

from __future__ import annotations

import random
import string
import threading
from collections.abc import Callable

import pytest
from defective_loader import (
    insert_what_is_there,
    retry_in_another_order,
    retry_without_looking,
    retry_without_token,
    take_begun_for_done,
    take_failures_for_done,
)

from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.clickhouse.preflight import check
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import Close, CutBody, DelayAnswer, DropAnswer, Fault, HoldBody
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import BatchStatus
from oncehouse.pipeline.stages import load_stage

EVENTS = [make_event(number) for number in range(80)]


def outcomes(live_pipeline: LivePipeline) -> list[str | None]:
    return [
        attempt.outcome
        for batch in live_pipeline.batches()
        for attempt in batches.list_attempts(live_pipeline.catalog, batch.batch_id)
    ]


# The connection is cut


def cut(live_pipeline: LivePipeline, proxy: FaultProxy, fault: Fault) -> None:
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS)
    proxy.inject(fault, times=2)
    live_pipeline.run()
    assert proxy.happened[type(fault)] == 2


@pytest.mark.scenario("connection cut half-way")
@pytest.mark.parametrize("fault", [CutBody(), Close()])
def test_an_insert_that_is_cut_is_sent_again_until_it_arrives(make_pipeline, proxy, fault):
    live_pipeline = make_pipeline()
    cut(live_pipeline, proxy, fault)
    assert outcomes(live_pipeline).count("unknown") == 2
    live_pipeline.assert_exact()


@pytest.mark.defect("connection cut half-way")
def test_an_insert_that_is_cut_and_taken_for_done_is_noticed(make_pipeline, proxy, monkeypatch):
    take_failures_for_done(monkeypatch)
    live_pipeline = make_pipeline(epoch={"max_rows": 40}, batch={"max_rows": 40})
    cut(live_pipeline, proxy, CutBody())
    with pytest.raises(AssertionError, match="events are lost"):
        live_pipeline.assert_exact()


# The driver dies


def kill_in_the_middle(
    live_pipeline: LivePipeline, proxy: FaultProxy, kill_tree: Callable[[int], None]
) -> None:
    """The driver, its JVM and its workers die when ClickHouse has half of an INSERT's body."""
    # So much that the server begins with the first half: it waits for a whole chunk of the client's.
    note = "".join(random.Random(1).choices(string.ascii_letters, k=100_000))
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS[:60], note=note)
    proxy.inject(HoldBody())
    driver = live_pipeline.spawn("--once")
    running = (
        "SELECT count() FROM system.processes "
        f"WHERE query_kind = 'Insert' AND query LIKE '%{live_pipeline.database}%'"
    )
    try:
        wait_until(lambda: proxy.happened[HoldBody] or driver.poll() is not None, "half of a body")
        assert driver.poll() is None, live_pipeline.log()[-3000:]
        wait_until(lambda: live_pipeline.client.query(running).result_rows[0][0], "an INSERT that has begun")
    finally:
        kill_tree(driver.pid)
        driver.wait()
    begun = {batch.batch_id for batch in live_pipeline.batches(statuses=[BatchStatus.IN_PROCESS])}
    assert begun
    live_pipeline.send(EVENTS[40:], note=note)
    live_pipeline.run()
    assert begun <= {batch.batch_id for batch in live_pipeline.batches(statuses=[BatchStatus.IN_CLICKHOUSE])}


@pytest.mark.scenario("driver killed in the middle of an INSERT")
def test_a_driver_killed_in_the_middle_of_an_insert_has_the_same_batch_sent_again(
    make_pipeline, proxy, kill_tree
):
    live_pipeline = make_pipeline()
    kill_in_the_middle(live_pipeline, proxy, kill_tree)
    live_pipeline.assert_exact()


@pytest.mark.defect("driver killed in the middle of an INSERT")
def test_an_insert_that_was_begun_and_is_taken_for_done_is_noticed(
    make_pipeline, proxy, kill_tree, monkeypatch
):
    take_begun_for_done(monkeypatch)
    live_pipeline = make_pipeline()
    kill_in_the_middle(live_pipeline, proxy, kill_tree)
    with pytest.raises(AssertionError, match="60 events are lost"):
        live_pipeline.assert_exact()


def kill_before_the_answer(
    live_pipeline: LivePipeline, proxy: FaultProxy, kill_tree: Callable[[int], None]
) -> set[str]:
    """The driver, its JVM and its workers die when ClickHouse has done an INSERT and its answer is on the way.

    Gives back which of its batches were sent again.
    """
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS[:60])
    proxy.inject(DelayAnswer(seconds=600))
    driver = live_pipeline.spawn("--once")
    try:
        wait_until(lambda: proxy.happened[DelayAnswer] or driver.poll() is not None, "an answer on its way")
        assert driver.poll() is None, live_pipeline.log()[-3000:]
    finally:
        kill_tree(driver.pid)
        driver.wait()
    begun = {batch.batch_id for batch in live_pipeline.batches(statuses=[BatchStatus.IN_PROCESS])}
    assert begun
    assert live_pipeline.rows(), "the INSERT was done"
    live_pipeline.send(EVENTS[40:])
    live_pipeline.run()
    return begun & proxy.bodies.repeated


@pytest.mark.scenario("driver killed before the answer")
def test_what_a_driver_inserted_that_died_before_the_answer_is_found_and_not_sent_again(
    make_pipeline, proxy, kill_tree
):
    live_pipeline = make_pipeline()
    assert not kill_before_the_answer(live_pipeline, proxy, kill_tree)
    live_pipeline.assert_exact()


@pytest.mark.defect("driver killed before the answer")
def test_an_insert_whose_answer_died_with_its_driver_and_that_has_no_token_is_noticed(
    make_pipeline, proxy, kill_tree, monkeypatch
):
    retry_without_token(monkeypatch)
    live_pipeline = make_pipeline()
    assert kill_before_the_answer(live_pipeline, proxy, kill_tree)
    with pytest.raises(AssertionError, match="60 rows are doubled"):
        live_pipeline.assert_exact()


@pytest.mark.defect("driver killed before the answer")
def test_a_batch_that_is_sent_again_in_another_order_is_noticed(make_pipeline, proxy, monkeypatch):
    """The table would take it by its token all the same, so only the bytes show it."""
    retry_in_another_order(monkeypatch)
    live_pipeline = make_pipeline()
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS)
    proxy.inject(CutBody())
    live_pipeline.run()
    with pytest.raises(AssertionError, match="sent again with other bytes"):
        live_pipeline.assert_exact()


@pytest.mark.defect("answer swallowed")
def test_a_view_that_takes_a_repeat_twice_is_noticed(make_pipeline, proxy, monkeypatch):
    """Its target remembers no tokens, which nobody has looked at, and what is there is sent again."""
    insert_what_is_there(monkeypatch)
    monkeypatch.setattr(check, "read_views", lambda *_: ())
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.create_tables()
    live_pipeline.create_view(remembered_blocks=0)
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS)
    proxy.inject(DropAnswer())
    live_pipeline.run()
    with pytest.raises(AssertionError, match="the view sums up 1 batches otherwise"):
        live_pipeline.assert_exact()


@pytest.mark.defect("driver killed while it loads")
def test_a_driver_killed_after_an_insert_that_is_sent_again_without_token_is_noticed(
    make_pipeline, monkeypatch
):
    live_pipeline = make_pipeline()
    live_pipeline.send(EVENTS)
    live_pipeline.crash("after inserting", "--once")
    retry_without_token(monkeypatch)
    live_pipeline.run()
    with pytest.raises(AssertionError, match="80 rows are doubled"):
        live_pipeline.assert_exact()


# The token is forgotten


def forget_the_token(
    live_pipeline: LivePipeline,
    proxy: FaultProxy,
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
    *,
    meanwhile: str = "",
) -> None:
    """Between an attempt and its retry the table comes to remember one token only, and others insert."""
    may_go_on = threading.Event()
    right = load_stage.LoadStage._facts_for

    def wait_before_retry(self, batch):
        assert not batch.attempts or may_go_on.wait(120)
        return right(self, batch)

    monkeypatch.setattr(load_stage.LoadStage, "_facts_for", wait_before_retry)
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS)
    proxy.inject(fault)
    with live_pipeline.start():
        try:
            wait_until(lambda: proxy.happened[type(fault)], "an insert that fails")
            wait_until(lambda: "unknown" in outcomes(live_pipeline), "an attempt of unknown outcome")
            window = f"ALTER TABLE {live_pipeline.table} MODIFY SETTING non_replicated_deduplication_window"
            live_pipeline.client.command(f"{window} = 1")
            for token in ("one", "another"):
                live_pipeline.client.command(
                    f"INSERT INTO {live_pipeline.table} (note) SETTINGS insert_deduplication_token = '{token}' "
                    "VALUES ('of somebody else')"
                )
            live_pipeline.client.command(
                f"DELETE FROM {live_pipeline.table} WHERE note = 'of somebody else' {meanwhile}"
            )
        finally:
            may_go_on.set()
        wait_until(lambda: not live_pipeline.batches(statuses=batches.WAITING), "the retry")


@pytest.mark.scenario("retry after the token is forgotten")
@pytest.mark.parametrize(
    ("fault", "last"), [(DropAnswer(), "already there"), (CutBody(), "inserted")], ids=["whole", "nothing"]
)
def test_a_retry_whose_token_is_forgotten_looks_first(make_pipeline, proxy, monkeypatch, fault, last):
    live_pipeline = make_pipeline()
    forget_the_token(live_pipeline, proxy, fault, monkeypatch)
    assert outcomes(live_pipeline) == ["unknown", last]
    live_pipeline.assert_exact()


@pytest.mark.scenario("retry after the token is forgotten")
def test_a_retry_whose_token_is_forgotten_is_parked_when_only_some_rows_are_there(
    make_pipeline, proxy, monkeypatch
):
    live_pipeline = make_pipeline()
    forget_the_token(live_pipeline, proxy, DropAnswer(), monkeypatch, meanwhile="OR product_id < 5")
    (parked,) = live_pipeline.batches(statuses=[BatchStatus.PARKED])
    assert "75 of its 80 rows" in (parked.reason or "")
    assert len(live_pipeline.rows()) == 75


@pytest.mark.defect("retry after the token is forgotten")
def test_a_retry_that_trusts_a_forgotten_token_is_noticed(make_pipeline, proxy, monkeypatch):
    retry_without_looking(monkeypatch)
    live_pipeline = make_pipeline()
    forget_the_token(live_pipeline, proxy, DropAnswer(), monkeypatch)
    with pytest.raises(AssertionError, match="80 rows are doubled"):
        live_pipeline.assert_exact()


# A batch over several partitions fails between two of them


def fail_half_way(make_pipeline: Callable[..., LivePipeline]) -> LivePipeline:
    """The server has written some partitions of a batch when computing an index fails for another one."""
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.create_tables(
        then=lambda ddl: ddl.replace("ORDER BY", "PARTITION BY product_id % 4 ORDER BY")
    )
    live_pipeline.create_view()
    live_pipeline.client.command(
        f"ALTER TABLE {live_pipeline.table} MODIFY SETTING non_replicated_deduplication_window = 100000"
    )
    live_pipeline.client.command(
        f"ALTER TABLE {live_pipeline.table} ADD INDEX half throwIf(product_id % 4 = 3) TYPE minmax GRANULARITY 1"
    )
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    partitions = {number % 4 for (_, _, number), _ in live_pipeline.rows()}
    assert 0 < len(partitions) < 4, "some partitions, not all"
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} DROP INDEX half")
    for batch in live_pipeline.batches(statuses=[BatchStatus.PARKED]):
        assert "throwIf" in (batch.reason or "")
        batches.retry_parked(live_pipeline.catalog, batch.batch_id)
    live_pipeline.run()
    return live_pipeline


@pytest.mark.scenario("batch over partitions fails half-way")
def test_a_batch_that_failed_between_two_partitions_is_completed(make_pipeline):
    live_pipeline = fail_half_way(make_pipeline)
    assert outcomes(live_pipeline)[-1] == "inserted"
    live_pipeline.assert_exact()


@pytest.mark.defect("batch over partitions fails half-way")
def test_a_batch_that_failed_between_two_partitions_and_is_sent_again_without_token_is_noticed(
    make_pipeline, monkeypatch
):
    retry_without_token(monkeypatch)
    live_pipeline = fail_half_way(make_pipeline)
    with pytest.raises(AssertionError, match="rows are doubled"):
        live_pipeline.assert_exact()
