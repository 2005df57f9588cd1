"""Defects of the loader, put into this process alone; what has to reach Spark's workers is a function in a function."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oncehouse.clickhouse.insert.outcome import Inserted, Refused, Retryable
from oncehouse.devstack.chaos.injected_defects import without_token
from oncehouse.pipeline.load import attempt, insert_task


def take_failures_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that ended with an error counts as an insert."""
    right = insert_task.classify_outcome

    def classify_kindly(outcome, **facts):
        failed = isinstance(outcome, Retryable | Refused)
        return right(Inserted(rows=0, seconds=0.0) if failed else outcome, **facts)

    monkeypatch.setattr(insert_task, "classify_outcome", classify_kindly)


def take_begun_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose insert was begun by a driver that died counts as inserted."""
    right = insert_task._run

    def run_only_first(spark, plan):
        return right(spark, plan) if plan.request.attempt == 1 else Inserted(rows=0, seconds=0.0)

    monkeypatch.setattr(insert_task, "_run", run_only_first)


def retry_without_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry trusts the token, whatever may have become of it, and does not ask the table."""

    def send_trusting(plan):
        from oncehouse.pipeline.load import insert_task

        trusting = replace(plan.request, outcome_unknown=False, may_be_forgotten=False)
        return insert_task.send_batch(replace(plan, request=trusting))

    monkeypatch.setattr(insert_task, "send_batch", send_trusting)


def retry_without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token goes along, and a retry does not ask the table either."""
    monkeypatch.setattr(insert_task, "send_batch", without_token(insert_task.send_batch))


def retry_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry sends the same rows backwards."""

    def send_backwards(plan):
        from oncehouse.pipeline.load import insert_task

        right = insert_task.live_rows

        def read_backwards(*given):
            rows = right(*given)
            return rows.take(list(range(rows.num_rows))[::-1]) if plan.request.attempt > 1 else rows

        insert_task.live_rows = read_backwards
        try:
            return insert_task.send_batch(plan)
        finally:
            insert_task.live_rows = right

    monkeypatch.setattr(insert_task, "send_batch", send_backwards)


def look_without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look before a retry believes whichever replica answers."""

    def send_believing(plan):
        from oncehouse.clickhouse import replica_sync
        from oncehouse.pipeline.load import insert_task

        right = replica_sync.read_engines
        replica_sync.read_engines = lambda *_: ()
        try:
            return insert_task.send_batch(plan)
        finally:
            replica_sync.read_engines = right

    monkeypatch.setattr(insert_task, "send_batch", send_believing)


def insert_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that finds all rows inserts them again, so that views get theirs."""

    def send_all(plan):
        from oncehouse.clickhouse.insert import lost_answer
        from oncehouse.pipeline.load import insert_task

        right, find_target = lost_answer.decide_retry, lost_answer.find_forgetful_target

        def decide(request, **facts):
            step = right(request, **facts)
            return (
                lost_answer.RetryDecision.INSERT if step is lost_answer.RetryDecision.ALREADY_THERE else step
            )

        lost_answer.decide_retry = decide
        # It would keep the batch from a view that has forgotten it.
        lost_answer.find_forgetful_target = lambda *_, **__: None
        try:
            return insert_task.send_batch(plan)
        finally:
            lost_answer.decide_retry, lost_answer.find_forgetful_target = right, find_target

    monkeypatch.setattr(insert_task, "send_batch", send_all)


def overlook_foreign_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others insert does not count."""
    monkeypatch.setattr(attempt, "blocks_between", lambda *_: 1)
