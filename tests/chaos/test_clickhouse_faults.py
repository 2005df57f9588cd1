"""ClickHouse refuses, is slow or dies: what passes is retried, what stays is parked with its reason, nothing is lost.

The server does it itself wherever it can be made to; the proxy answers where it cannot. One table is in trouble while
a second one of the same pipeline has to go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

import pytest
from defective_loader import retry_without_token, take_failures_for_done

from clickhouse_users import PASSWORD
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.devstack.proxies.fault_proxy import UNTIL_TAKEN_BACK, FaultProxy
from oncehouse.devstack.proxies.faults import AnswerError, DelayRequest
from oncehouse.devstack.stack import Stack
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import Attempt, BatchStatus

EVENTS = [make_event(number) for number in range(90)]


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Something is wrong with a table from `harm` on until `mend`; `says` is part of the reason that is shown."""

    scenario: str
    says: str
    parks: bool = False
    harm: tuple[str, ...] = ()
    mend: tuple[str, ...] = ()
    answer: AnswerError | None = None
    settings: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.scenario}: {self.says}"


def _as(user: str, **settings: object) -> dict[str, object]:
    return {"user": user, "password": PASSWORD, **settings}


TROUBLES = (
    Trouble(scenario="ClickHouse answers 5xx", says="503", answer=AnswerError()),
    Trouble(
        scenario="ClickHouse answers 5xx",
        says="999",
        answer=AnswerError(status=HTTPStatus.INTERNAL_SERVER_ERROR, code=999),
    ),
    Trouble(
        scenario="ClickHouse is slow",
        says="TIMEOUT_EXCEEDED",
        harm=("ALTER TABLE {table} ADD COLUMN slow UInt8 MATERIALIZED sleepEachRow(0.5)",),
        mend=("ALTER TABLE {table} DROP COLUMN slow",),
        settings=_as("sleeper", insert_timeout=1),
    ),
    Trouble(
        scenario="too many parts",
        says="Too many parts",
        harm=(
            "SYSTEM STOP MERGES {table}",
            "ALTER TABLE {table} MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 1",
        ),
        mend=(
            "ALTER TABLE {table} RESET SETTING parts_to_throw_insert, parts_to_delay_insert",
            "SYSTEM START MERGES {table}",
        ),
    ),
    Trouble(
        scenario="table is read-only",
        says="readonly mode",
        parks=True,
        harm=("ALTER TABLE {table} MODIFY SETTING table_readonly = 1",),
        mend=("ALTER TABLE {table} MODIFY SETTING table_readonly = 0",),
    ),
    # A replica that has lost its Keeper: the embedded server has no replicated tables.
    Trouble(
        scenario="table is read-only",
        says="242",
        answer=AnswerError(status=HTTPStatus.INTERNAL_SERVER_ERROR, code=242),
    ),
    Trouble(
        scenario="ClickHouse is out of memory",
        says="MEMORY_LIMIT_EXCEEDED",
        harm=(
            (
                "ALTER TABLE {table} ADD COLUMN heavy UInt64 "
                "MATERIALIZED length(range(toUInt64(product_id * 0 + 7000000)))"
            ),
        ),
        mend=("ALTER TABLE {table} DROP COLUMN heavy",),
        settings=_as("little_memory"),
    ),
    Trouble(
        scenario="table missing",
        says="UNKNOWN_TABLE",
        parks=True,
        harm=("RENAME TABLE {table} TO {table}_away",),
        mend=("RENAME TABLE {table}_away TO {table}",),
    ),
    Trouble(
        scenario="column missing",
        says="No such column note",
        parks=True,
        harm=("ALTER TABLE {table} RENAME COLUMN note TO note_away",),
        mend=("ALTER TABLE {table} RENAME COLUMN note_away TO note",),
    ),
)
FIRST_OF_EACH = {trouble.scenario: trouble for trouble in reversed(TROUBLES)}.values()


def add_table(live_pipeline: LivePipeline, name: str) -> str:
    full = f"{live_pipeline.database}.{name}"
    live_pipeline.document["tables"].append({"name": full})
    live_pipeline.create_tables(full)
    return full


def attempts_at(live_pipeline: LivePipeline, table: str) -> list[Attempt]:
    """Attempts that came to an end."""
    return [
        attempt
        for batch in live_pipeline.batches(table=table)
        for attempt in batches.list_attempts(live_pipeline.catalog, batch.batch_id)
        if attempt.outcome is not None
    ]


@dataclass(frozen=True, kw_only=True)
class Seen:
    parked: bool
    reasons: tuple[str, ...]


def play(live_pipeline: LivePipeline, proxy: FaultProxy, trouble: Trouble) -> Seen:
    """Events come in before and during the trouble; somebody mends it, and then has parked batches sent again."""
    live_pipeline.document["clickhouse"] |= trouble.settings
    live_pipeline.go_through(proxy)
    other = add_table(live_pipeline, "other")
    live_pipeline.send(EVENTS[:30])
    with live_pipeline.start() as running:
        for table in (live_pipeline.table, other):
            running.wait_for_rows(30, table)
        wait_until(
            lambda: not live_pipeline.batches(statuses=batches.WAITING), "the first events to be settled"
        )
        before = len(attempts_at(live_pipeline, other))
        for statement in trouble.harm:
            live_pipeline.client.command(statement.format(table=other))
        if trouble.answer is not None:
            proxy.inject(trouble.answer, times=UNTIL_TAKEN_BACK, table="`other`")
        live_pipeline.send(EVENTS[30:])
        running.wait_for_rows(90)  # of the table that has no trouble
        wait_until(lambda: len(attempts_at(live_pipeline, other)) > before, "an insert in trouble")
        parked = live_pipeline.batches(statuses=[BatchStatus.PARKED])
        for statement in trouble.mend:
            live_pipeline.client.command(statement.format(table=other))
        proxy.take_back()
    reasons = tuple(found.detail for found in attempts_at(live_pipeline, other) if found.detail is not None)
    for batch in live_pipeline.batches(statuses=[BatchStatus.PARKED]):
        batches.retry_parked(live_pipeline.catalog, batch.batch_id)
    live_pipeline.run()
    return Seen(parked=bool(parked), reasons=reasons)


def _marked(mark: str, troubles) -> list:
    return [
        pytest.param(trouble, id=str(trouble), marks=getattr(pytest.mark, mark)(trouble.scenario))
        for trouble in troubles
    ]


@pytest.mark.parametrize("trouble", _marked("scenario", TROUBLES))
def test_a_table_in_trouble_gets_all_its_rows_once_it_is_mended_and_the_other_one_meanwhile(
    make_pipeline, proxy, trouble
):
    live_pipeline = make_pipeline()
    seen = play(live_pipeline, proxy, trouble)
    assert seen.parked is trouble.parks, seen.reasons
    assert any(trouble.says in reason for reason in seen.reasons), seen.reasons
    live_pipeline.assert_exact()
    live_pipeline.assert_table(f"{live_pipeline.database}.other", live_pipeline.expected)


@pytest.mark.parametrize("trouble", _marked("defect", FIRST_OF_EACH))
def test_a_refused_batch_that_is_taken_for_inserted_is_noticed(make_pipeline, proxy, trouble, monkeypatch):
    live_pipeline = make_pipeline()
    with monkeypatch.context() as defective:
        take_failures_for_done(defective)
        play(live_pipeline, proxy, trouble)
    with pytest.raises(AssertionError, match="events are lost"):
        live_pipeline.assert_table(f"{live_pipeline.database}.other", live_pipeline.expected)


def get_an_insert_late(live_pipeline: LivePipeline, proxy: FaultProxy) -> None:
    """The first INSERT reaches the server when its client has given up and sent it again."""
    live_pipeline.document["clickhouse"]["insert_timeout"] = 1
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS)
    proxy.inject(DelayRequest(seconds=8))
    live_pipeline.run()
    assert proxy.happened[DelayRequest] == 1
    assert "unknown" in [found.outcome for found in attempts_at(live_pipeline, live_pipeline.table)]
    wait_until(lambda: proxy.late_answers, "the insert that comes late")


@pytest.mark.scenario("ClickHouse is slow")
def test_an_insert_that_arrives_after_its_retry_adds_nothing(make_pipeline, proxy):
    live_pipeline = make_pipeline()
    get_an_insert_late(live_pipeline, proxy)
    live_pipeline.assert_exact()


@pytest.mark.defect("ClickHouse is slow")
def test_an_insert_without_token_that_arrives_after_its_retry_is_noticed(make_pipeline, proxy, monkeypatch):
    retry_without_token(monkeypatch)
    live_pipeline = make_pipeline()
    get_an_insert_late(live_pipeline, proxy)
    with pytest.raises(AssertionError, match="90 rows are doubled"):
        live_pipeline.assert_exact()


def kill_and_start(live_pipeline: LivePipeline, stack: Stack) -> None:
    """ClickHouse is away while events come in, and back before the pipeline ends."""
    live_pipeline.send(EVENTS[:30])
    with live_pipeline.start() as running:
        running.wait_for_rows(30)
        wait_until(
            lambda: not live_pipeline.batches(statuses=batches.WAITING), "the first events to be settled"
        )
        before = len(attempts_at(live_pipeline, live_pipeline.table))
        stack.kill("clickhouse")
        live_pipeline.send(EVENTS[20:60])
        wait_until(
            lambda: len(attempts_at(live_pipeline, live_pipeline.table)) > before,
            "an insert that found no server",
        )
        stack.start("clickhouse")
    live_pipeline.send(EVENTS[60:])
    live_pipeline.run()


@pytest.mark.short
@pytest.mark.scenario("ClickHouse killed")
def test_clickhouse_killed_and_started_again_has_everything_once(live_pipeline, stack):
    kill_and_start(live_pipeline, stack)
    live_pipeline.assert_exact()


@pytest.mark.defect("ClickHouse killed")
def test_a_batch_that_found_no_server_and_is_taken_for_inserted_is_noticed(live_pipeline, stack, monkeypatch):
    with monkeypatch.context() as defective:
        take_failures_for_done(defective)
        kill_and_start(live_pipeline, stack)
    with pytest.raises(AssertionError, match="events are lost"):
        live_pipeline.assert_exact()
