"""Whether a batch's token can be relied on, by the blocks that anybody inserted since its first attempt."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.clickhouse.client import error_class, failure_of
from oncehouse.clickhouse.errors import classify
from oncehouse.clickhouse.insert.block_counts import BlockCount, blocks_between
from oncehouse.clickhouse.insert.deadline import read_moment
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import Attempt, BatchStatus, LedgerBatch
from oncehouse.pipeline.load import attempt as attempts
from oncehouse.pipeline.load import insert_task
from oncehouse.pipeline.load.attempt import blocks_since, is_doubtful, may_forget_attempt, open_attempt
from table_facts import make_table_facts

FACTS = make_table_facts()
THEN = BlockCount(uuid="u", blocks=5000)


def forgotten(blocks, *, seconds=10.0, ahead=0.0, facts=FACTS, then=THEN, uuid="u"):
    now = None if blocks is None else str(BlockCount(uuid=uuid, blocks=THEN.blocks + blocks))
    return may_forget_attempt(
        facts,
        blocks=blocks_since([str(then)], now, lambda: 0),
        seconds=seconds,
        seconds_ahead=ahead,
        remembered=600.0,
    )


def test_blocks_of_anybody_count_against_what_the_table_remembers():
    assert not forgotten(999)
    assert forgotten(1000)


def test_blocks_that_will_come_until_the_repeat_is_done_count_as_well():
    assert not forgotten(100, seconds=10.0, ahead=89.0)
    assert forgotten(100, seconds=10.0, ahead=91.0)


def test_an_attempt_made_a_moment_ago_is_no_measure_of_what_others_insert():
    """Its own blocks, one a partition, are among those that came."""
    assert not forgotten(10, seconds=0.1, ahead=300.0)


@pytest.mark.parametrize(
    "unclear",
    [
        {"blocks": None},
        {"blocks": 1, "facts": None},
        {"blocks": -1},
        {"blocks": 1, "uuid": "another-table"},
        {"blocks": 1, "seconds": 601.0},
        {"blocks": 1, "seconds": -1.0},
    ],
    ids=" ".join,
)
def test_what_nobody_can_tell_counts_as_forgotten(unclear):
    assert forgotten(**unclear)


def test_a_table_that_forgets_by_time_is_asked_for_the_time_of_the_repeat_too():
    timed = replace(FACTS, window_seconds=400.0)
    assert not forgotten(1, seconds=90.0, ahead=300.0, facts=timed)
    assert forgotten(1, seconds=110.0, ahead=300.0, facts=timed)


@given(uuid=st.uuids(), blocks=st.integers(0, 2**63 - 1))
def test_a_count_is_read_as_it_was_written_and_fits_into_the_catalog(uuid, blocks):
    count = BlockCount(uuid=str(uuid), blocks=blocks)
    assert BlockCount.parse(str(count)) == count
    assert len(str(count)) <= 64
    assert BlockCount.parse(None) is None
    assert blocks_between(count, count) == 0


BATCH = "0f8fad5b-d9cb-469f-a165-70867728950e"
PIPELINE = SimpleNamespace(
    pipeline="example",
    max_clock_difference=60.0,
    clickhouse=ClickHouse(url="http://fake:8123", insert_timeout=60.0),
    ledger=SimpleNamespace(files="/nowhere"),
)
WAITING = LedgerBatch(
    batch_id=BATCH,
    table="events",
    status=BatchStatus.RETRY,
    rows=1,
    size_bytes=1,
    attempts=2,
    created_at=0.0,
    next_attempt_at=0.0,
)


def attempt(number, blocks, *, outcome="unknown", uuid="u"):
    return Attempt(
        batch_id=BATCH,
        attempt=number,
        query_id=f"{BATCH}-{number}",
        started_at=1000.0 + 10 * number,
        finished_at=None,
        outcome=outcome,
        detail=None,
        block_count=None if blocks is None else f"{uuid} {blocks}",
    )


def is_lost(monkeypatch, doubtful, now, *, own=0, facts=FACTS):
    monkeypatch.setattr(batches, "count_attempts", lambda *_, **__: own)
    return is_doubtful(PIPELINE, None, facts, "events", doubtful, now)


@pytest.mark.parametrize("engine", ["SharedMergeTree", "MergeTree"])
def test_a_table_without_counts_is_measured_by_the_own_attempts(monkeypatch, engine):
    """Such as a Shared one; and a batch whose attempts an older version made."""
    facts = replace(FACTS, engine=engine)
    now = attempt(2, None if engine.startswith("Shared") else 70)
    assert not is_lost(monkeypatch, [attempt(1, None)], now, own=2, facts=facts)
    assert is_lost(monkeypatch, [attempt(1, None)], now, own=1000, facts=facts)


def test_each_own_attempt_may_have_as_many_blocks_as_partitions(monkeypatch):
    facts = replace(FACTS, partition_key="toYYYYMM(t)")
    assert is_lost(monkeypatch, [attempt(1, None)], attempt(2, None), own=10, facts=facts)
    assert not is_lost(monkeypatch, [attempt(1, None)], attempt(2, None), own=1, facts=facts)


def test_counts_that_later_attempts_have_are_not_left_out(monkeypatch):
    past = [attempt(1, None), attempt(2, 100)]
    assert is_lost(monkeypatch, past, attempt(3, 5000), own=3)
    assert not is_lost(monkeypatch, past, attempt(3, 110), own=3)


def test_a_count_that_was_there_and_is_not_any_more_proves_nothing(monkeypatch):
    assert is_lost(monkeypatch, [attempt(1, 100)], attempt(2, None))


def test_a_replicated_table_without_its_keeper_ends_the_attempt_before_anything_is_sent(monkeypatch):
    class KeeperAway:
        database = "default"
        address = "http://fake:8123"

        def query(self, *_asked):
            return [("u", -1)]

    monkeypatch.setattr(attempts, "connect", lambda _: KeeperAway())
    opened = open_attempt(PIPELINE, WAITING, replace(FACTS, engine="ReplicatedMergeTree"))
    assert isinstance(opened.error, TransientError)
    assert "Keeper" in str(opened.error)


def test_sessions_of_attempts_whose_insert_can_be_under_way_no_more_are_left_alone():
    """After hours of lost answers each attempt would end hundreds of them."""
    now = replace(attempt(9, 1), started_at=10_000.0)
    past = [
        replace(attempt(number, 1), started_at=at) for number, at in ((1, 100.0), (2, 9_089.0), (3, 9_091.0))
    ]
    assert attempts.open_sessions(PIPELINE, past, now) == (f"{BATCH}-3",)


def test_a_server_that_keeps_no_session_for_long_enough_is_named_with_the_remedy(monkeypatch):
    class Short:
        database = "default"

        def query(self, *_asked):
            message = "Code: 36. DB::Exception: Session timeout '180' is larger than max_session_timeout: 60"
            failure = DatabaseError(message, code=36)
            judged = classify(failure)
            raise error_class(judged)(judged.message) from failure

    monkeypatch.setattr(attempts, "connect", lambda _: Short())
    opened = open_attempt(PIPELINE, WAITING, FACTS)
    assert isinstance(opened.error, ConfigurationError)
    assert "max_session_timeout" in str(opened.error)
    assert "insert_sessions: false" in str(opened.error)
    assert failure_of(opened.error).code == 36


def test_an_attempt_that_was_never_sent_does_not_count_among_those_that_may_have_been(monkeypatch):
    """It has no count, or one of long ago: measured from it, healthy batches were parked for ever."""
    past = [
        attempt(1, None, outcome="failed"),
        attempt(2, 3, outcome="failed"),
        attempt(3, 5000),
    ]
    monkeypatch.setattr(batches, "list_attempts", lambda *_: past)
    monkeypatch.setattr(batches, "load_parts", lambda *_: ())
    monkeypatch.setattr(batches, "count_attempts", lambda *_, **__: 3)
    plan = insert_task.plan_load(
        PIPELINE,
        SimpleNamespace(name="events", batch_column="_batch_id"),
        WAITING,
        attempt(4, 5010, outcome=None),
        catalog=None,
        facts=FACTS,
        opened=attempts.OpenedAttempt(began=read_moment()),
    )
    assert plan.request.outcome_unknown
    assert not plan.request.may_be_forgotten
    assert plan.request.earlier_sessions == (f"{BATCH}-3",)
