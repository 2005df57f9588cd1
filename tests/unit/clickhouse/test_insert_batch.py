import time
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pytest
from clickhouse_connect.driver import exceptions as driver

from oncehouse.clickhouse.client import error_class, failure_of
from oncehouse.clickhouse.errors import classify
from oncehouse.clickhouse.insert import insert_batch as insert
from oncehouse.clickhouse.insert import lost_answer
from oncehouse.clickhouse.insert.deadline import Deadline, Moment
from oncehouse.clickhouse.insert.insert_batch import FEW_ATTEMPTS, insert_batch
from oncehouse.clickhouse.insert.lost_answer import RetryDecision, decide_retry
from oncehouse.clickhouse.insert.outcome import (
    AlreadyThere,
    Inserted,
    InsertRequest,
    PartlyThere,
    Refused,
    Retryable,
)
from oncehouse.clickhouse.insert.repeatable_block import batch_id_array
from oncehouse.common.query_ids import attempt_query_id
from oncehouse.config.pipeline import ClickHouse, Retry
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.ledger.models import BatchStatus
from oncehouse.messaging.clickhouse_handler import send_rows
from oncehouse.pipeline.load.insert_task import classify_outcome

BATCH = "0f8fad5b-d9cb-469f-a165-70867728950e"
FIRST = InsertRequest(
    table="events",
    columns=("n",),
    batch_column="_batch_id",
    batch_id=BATCH,
    attempt=1,
    rows=10,
    earlier_query_ids=(),
    outcome_unknown=False,
    may_be_forgotten=False,
    merges_rows=False,
)
AGAIN = replace(FIRST, attempt=2, earlier_query_ids=(attempt_query_id(BATCH, 1),), outcome_unknown=True)
ROWS = pa.table({"n": np.arange(10)})


@dataclass
class FakeClient:
    """A table that remembers tokens, and a server that fails as it is told."""

    present: int = 0
    views: bool = False
    logged: bool = False
    remembers: bool = False
    orphan_token: bool = False
    running: tuple[str, ...] = ()
    failure: driver.Error | None = None
    fails_on: str = "insert"
    calls: list[str] = field(default_factory=list)
    settings: dict = field(default_factory=dict)
    sent: list[pa.Table] = field(default_factory=list)
    database: str = "default"
    config = ClickHouse(url="http://fake:8123")
    insert_timeout_seconds: float = 300.0

    def _record(self, call):
        self.calls.append(call)
        if self.failure is not None and self.fails_on == call:
            judged = classify(self.failure)
            raise error_class(judged)(judged.message) from self.failure

    def command(self, sql, parameters=None, settings=None):
        self._record("kill" if sql.startswith("KILL") else "flush")

    def query(self, sql, parameters=None, settings=None):
        if "engine_full" in sql:
            return []  # a table without replicas, which is known from then on
        if "system.processes" in sql:
            self._record("processes")
            return [(query,) for query in self.running]
        if "system.tables" in sql:
            self._record("views")
            return [(int(self.views),)]
        if "system.query_log" in sql:
            self._record("log")
            return [(int(self.logged),)]
        if (settings or {}).get("close_session"):
            self._record(f"end {settings['session_id']}")
            return [(1,)]
        self._record("count")
        return [("all", self.present)] if self.present else []

    def knows_setting(self, name):
        return name != "deduplicate_insert"

    def insert_arrow(self, table, columns, stream, settings, deadline=None):
        self._record("insert")
        self.settings = dict(settings)
        self.sent.append(pa.ipc.open_stream(stream).read_all())
        if not self.orphan_token:
            self.present = self.sent[-1].num_rows if self.remembers else self.present + self.sent[-1].num_rows


def test_a_first_attempt_is_one_insert_and_nothing_else():
    client = FakeClient()
    assert isinstance(insert_batch(client, FIRST, ROWS), Inserted)
    assert client.calls == ["insert"]


def test_the_batch_travels_as_one_record_batch_with_its_id_in_every_row():
    client = FakeClient()
    chunked = pa.concat_tables([ROWS.slice(0, 3), ROWS.slice(3)])
    insert_batch(client, FIRST, chunked)
    sent = client.sent[0]
    assert [column.num_chunks for column in sent.columns] == [1, 1]
    assert sent.column("n").to_pylist() == list(range(10))
    assert sent.column("_batch_id").to_pylist() == [BATCH] * 10


def test_the_time_of_an_insert_begins_with_the_insert(monkeypatch):
    """Two inserts must not come closer to each other than was asked, so getting ready for one must not count."""
    now = [0.0]
    encode = insert.encode

    def take_long(*asked):
        now[0] += 30.0
        return encode(*asked)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(insert, "encode", take_long)
    assert insert_batch(FakeClient(), FIRST, ROWS) == Inserted(rows=10, seconds=0.0)


def test_every_attempt_carries_the_same_token_and_a_query_id_of_its_own():
    client = FakeClient(remembers=True)
    insert_batch(client, FIRST, ROWS)
    first = client.settings
    client.present = 0
    insert_batch(client, AGAIN, ROWS)
    assert first["insert_deduplication_token"] == client.settings["insert_deduplication_token"] == BATCH
    assert first["query_id"] != client.settings["query_id"]
    assert client.settings["async_insert"] == 0


def test_settings_that_the_server_does_not_know_are_left_out():
    client = FakeClient()
    insert_batch(client, FIRST, ROWS)
    assert "deduplicate_insert" not in client.settings
    assert "insert_deduplicate" in client.settings


def test_earlier_attempts_are_ended_before_the_table_is_asked():
    client = FakeClient(present=10)
    assert isinstance(insert_batch(client, AGAIN, ROWS), AlreadyThere)
    assert client.calls == ["kill", "processes", "count", "views"]


def test_an_earlier_attempt_that_does_not_end_is_waited_for():
    client = FakeClient(running=(attempt_query_id(BATCH, 1),))
    outcome = insert_batch(client, AGAIN, ROWS)
    assert isinstance(outcome, Retryable)
    assert outcome.outcome_unknown
    assert "insert" not in client.calls


@pytest.mark.parametrize(
    ("found", "forgotten", "step"),
    [
        (0, False, RetryDecision.INSERT),
        (0, True, RetryDecision.INSERT),
        (4, False, RetryDecision.INSERT),
        (4, True, RetryDecision.PARTLY_THERE),
        (10, False, RetryDecision.ALREADY_THERE),
        (10, True, RetryDecision.ALREADY_THERE),
        (11, False, RetryDecision.PARTLY_THERE),
        (20, True, RetryDecision.PARTLY_THERE),
    ],
)
@pytest.mark.parametrize("merges", [False, True])
def test_what_is_found_decides_the_next_step(found, forgotten, step, merges):
    request = replace(AGAIN, may_be_forgotten=forgotten, merges_rows=merges)
    if merges and forgotten and found == 0:
        # The rows may be there under another batch id, merged away.
        step = RetryDecision.PARTLY_THERE
    assert decide_retry(request, found=found) is step


def test_a_token_that_may_be_forgotten_is_never_relied_on_when_some_rows_are_there():
    client = FakeClient(present=4)
    outcome = insert_batch(client, replace(AGAIN, may_be_forgotten=True), ROWS)
    assert isinstance(outcome, PartlyThere)
    assert (outcome.found, outcome.rows) == (4, 10)
    assert "insert" not in client.calls


@pytest.mark.parametrize("forgotten", [False, True])
def test_rows_that_are_there_are_never_sent_again_for_the_sake_of_views(forgotten):
    client = FakeClient(present=10, views=True, remembers=True)
    outcome = insert_batch(client, replace(AGAIN, may_be_forgotten=forgotten), ROWS)
    assert isinstance(outcome, AlreadyThere)
    assert outcome.views_unproven
    assert "insert" not in client.calls


def test_an_insert_that_the_query_log_has_as_done_has_reached_the_views():
    outcome = insert_batch(FakeClient(present=10, views=True, logged=True), AGAIN, ROWS)
    assert isinstance(outcome, AlreadyThere)
    assert not outcome.views_unproven


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("views", [False, True])
def test_a_table_that_merges_rows_is_not_sent_again_what_the_query_log_has_as_done(views, forgotten):
    """Fewer rows than were sent are usual there, and its views may have forgotten what they got."""
    client = FakeClient(present=4, views=views, logged=True, remembers=True)
    request = replace(AGAIN, merges_rows=True, may_be_forgotten=forgotten)
    outcome = insert_batch(client, request, ROWS)
    if views or forgotten:
        assert outcome == AlreadyThere(rows=4, seconds=outcome.seconds, views_unproven=False)
    assert ("insert" in client.calls) is not (views or forgotten)


def test_a_log_proves_nothing_of_rows_of_which_there_is_none():
    """A server that died may remember a token without rows, and have dropped the repeat that the log has."""
    request = replace(AGAIN, merges_rows=True, may_be_forgotten=True)
    assert isinstance(insert_batch(FakeClient(views=True, logged=True), request, ROWS), PartlyThere)


@pytest.mark.parametrize("present", [0, 4])
def test_a_table_that_merges_rows_is_parked_where_a_view_may_have_forgotten_the_token(monkeypatch, present):
    client = FakeClient(present=present, views=True, remembers=True)
    request = replace(AGAIN, merges_rows=True)
    monkeypatch.setattr(lost_answer, "find_forgetful_target", lambda *_, found: "d.sums")
    outcome = insert_batch(client, request, ROWS)
    assert isinstance(outcome, PartlyThere)
    assert "d.sums, to which a materialized view writes them, may have forgotten" in outcome.message
    assert "insert" not in client.calls
    monkeypatch.setattr(lost_answer, "find_forgetful_target", lambda *_, found: None)
    assert isinstance(insert_batch(client, request, ROWS), Inserted)


def test_the_query_log_is_asked_from_the_day_of_the_first_attempt_on():
    asked = []

    class Logging(FakeClient):
        def query(self, sql, parameters=None, settings=None):
            if "system.query_log" in sql:
                asked.append((sql, parameters["since"]))
            return super().query(sql, parameters, settings)

    insert_batch(Logging(present=10, views=True, logged=True), replace(AGAIN, earlier_began=86_400.5), ROWS)
    ((sql, since),) = asked
    assert since == 86_400
    assert "today()" not in sql


def test_sessions_of_doubtful_attempts_are_ended_before_the_table_is_asked():
    client = FakeClient(present=10)
    insert_batch(client, replace(AGAIN, earlier_sessions=("one", "two")), ROWS)
    assert client.calls == ["kill", "processes", "end one", "end two", "count", "views"]


def test_an_insert_needs_the_session_of_its_attempt_and_uses_it_up():
    client = FakeClient()
    insert_batch(client, replace(FIRST, session="mine"), ROWS)
    needed = {"session_id": "mine", "session_check": 1, "close_session": 1}
    assert needed.items() <= client.settings.items()


class Looking(FakeClient):
    """A server with sessions, whose look takes its time."""

    def with_settings(self, settings):
        self._look_settings = dict(settings)
        return self

    def query(self, sql, parameters=None, settings=None):
        if sql == "SELECT 1" and not (settings or {}).get("close_session"):
            self._record("keep")
            return [(1,)]
        found = super().query(sql, parameters, settings)
        if "_partition_id" in sql:
            self.clock[0] += self.look_seconds
        return found

    def insert_arrow(self, table, columns, stream, settings, deadline=None):
        self.late = deadline.is_over(insert.read_moment())
        super().insert_arrow(table, columns, stream, settings, deadline)


@pytest.mark.parametrize(
    ("session", "look_seconds", "late"), [("mine", 300, False), (None, 300, True), ("mine", 700, True)]
)
def test_a_long_look_leaves_time_to_send_while_the_session_shows_that_no_other_took_over(
    monkeypatch, session, look_seconds, late
):
    client = Looking()
    client.clock, client.look_seconds = [0.0], look_seconds
    monkeypatch.setattr(
        insert, "read_moment", lambda: Moment(boot="b", boot_seconds=client.clock[0], wall_seconds=0.0)
    )
    began = Moment(boot="b", boot_seconds=0.0, wall_seconds=0.0)
    request = replace(AGAIN, session=session, deadline=Deadline(began=began, seconds=180.0))
    insert_batch(client, request, ROWS)
    assert client.late is late


def test_a_session_that_was_ended_during_the_look_keeps_the_insert_back():
    failure = driver.DatabaseError("Code: 372. Session not found", code=372)
    client = Looking(failure=failure, fails_on="keep")
    client.clock, client.look_seconds = [0.0], 0
    request = replace(AGAIN, session="mine", deadline=Deadline(began=insert.read_moment(), seconds=180.0))
    outcome = insert_batch(client, request, ROWS)
    assert isinstance(outcome, Retryable)
    assert outcome.outcome_unknown
    assert "insert" not in client.calls


def test_an_accepted_repeat_without_rows_is_tried_a_few_times_and_then_shown():
    client = FakeClient(orphan_token=True)
    outcome = insert_batch(client, AGAIN, ROWS)
    assert isinstance(outcome, Retryable)
    assert outcome.outcome_unknown
    outcome = insert_batch(client, replace(AGAIN, attempt=FEW_ATTEMPTS), ROWS)
    assert isinstance(outcome, PartlyThere)
    assert outcome.found == 0


def test_a_table_that_merges_rows_need_not_show_all_of_them_after_a_repeat_but_some():
    request = replace(AGAIN, merges_rows=True)
    assert isinstance(insert_batch(FakeClient(present=4, remembers=True), request, ROWS), Inserted)
    assert isinstance(insert_batch(FakeClient(orphan_token=True), request, ROWS), Retryable)


def test_a_transient_failure_is_tried_again_with_its_outcome_unknown():
    client = FakeClient(failure=driver.DatabaseError("Code: 252. Too many parts", code=252))
    outcome = insert_batch(client, FIRST, ROWS)
    assert isinstance(outcome, Retryable)
    assert (outcome.code, outcome.too_many_parts, outcome.outcome_unknown) == (252, True, True)


def test_a_permanent_failure_is_refused():
    client = FakeClient(failure=driver.DatabaseError("Code: 60. Table events does not exist", code=60))
    outcome = insert_batch(client, FIRST, ROWS)
    assert isinstance(outcome, Refused)
    assert outcome.code == 60
    assert BATCH in outcome.message


def test_a_failure_before_the_insert_says_nothing_new_about_its_outcome():
    failure = driver.DatabaseError("Code: 241. Memory limit", code=241)
    first = FakeClient(failure=failure, fails_on="kill")
    known = replace(FIRST, attempt=2, earlier_query_ids=(attempt_query_id(BATCH, 1),))
    outcome = insert_batch(first, known, ROWS)
    assert isinstance(outcome, Retryable)
    assert not outcome.outcome_unknown
    outcome = insert_batch(FakeClient(failure=failure, fails_on="count"), AGAIN, ROWS)
    assert isinstance(outcome, Retryable)
    assert outcome.outcome_unknown


def test_a_query_that_was_not_let_in_leaves_an_earlier_unknown_outcome_unknown():
    failure = driver.DatabaseError("Code: 202. Too many simultaneous queries", code=202)
    outcome = insert_batch(FakeClient(failure=failure), AGAIN, ROWS)
    assert isinstance(outcome, Retryable)
    assert outcome.outcome_unknown
    outcome = insert_batch(FakeClient(failure=failure), FIRST, ROWS)
    assert isinstance(outcome, Retryable)
    assert not outcome.outcome_unknown


def test_a_code_on_no_list_is_tried_a_few_times_and_then_refused():
    failure = driver.DatabaseError("Code: 395. throwIf", code=395)
    assert isinstance(insert_batch(FakeClient(failure=failure), FIRST, ROWS), Retryable)
    last = replace(AGAIN, attempt=FEW_ATTEMPTS)
    assert isinstance(insert_batch(FakeClient(failure=failure), last, ROWS), Refused)


@pytest.mark.parametrize("rows", [ROWS.slice(0, 9), ROWS.rename_columns(["other"])])
def test_rows_that_are_not_the_batch_are_never_sent(rows):
    client = FakeClient()
    assert isinstance(insert_batch(client, FIRST, rows), Refused)
    assert client.calls == []


def test_a_batch_without_rows_needs_no_insert():
    client = FakeClient()
    assert insert_batch(client, replace(FIRST, rows=0), ROWS.slice(0, 0)) == Inserted(rows=0, seconds=0.0)
    assert client.calls == []


def test_the_batch_column_costs_one_byte_a_row():
    column = batch_id_array(BATCH, 1_000_000)
    assert column.indices.nbytes == 1_000_000
    assert column[999_999].as_py() == BATCH


@pytest.mark.parametrize(
    ("code", "remedy"), [(372, "insert_sessions: false"), (373, "end the process or the connection")]
)
@pytest.mark.parametrize("attempt", [1, FEW_ATTEMPTS, 1000])
def test_a_session_that_cannot_be_used_is_tried_again_however_often_and_names_the_remedy(
    code, remedy, attempt
):
    failure = driver.DatabaseError(f"Code: {code}. Session", code=code)
    outcome = insert_batch(FakeClient(failure=failure), replace(FIRST, attempt=attempt, session="mine"), ROWS)
    result = classify_outcome(outcome, attempt=attempt, retry=Retry(), jitter=1.0)
    assert result.status is BatchStatus.RETRY
    assert result.outcome == "unknown", "a proxy may have sent it twice"
    assert 0 < result.wait_seconds <= Retry().longest
    assert remedy in (result.detail or "")


@pytest.mark.parametrize("call", ["opening", "insert"])
@pytest.mark.parametrize(
    ("code", "message", "raised", "remedy"),
    [
        (372, "Session not found", TransientError, "insert_sessions: false"),
        (373, "Session is locked", TransientError, "end the process or the connection"),
        (
            36,
            "Session timeout '180' is larger than max_session_timeout: 60",
            ConfigurationError,
            "Raise max_session_timeout",
        ),
    ],
)
def test_rows_of_a_consumer_or_a_sync_whose_session_cannot_be_used_name_the_remedy(
    call, code, message, raised, remedy
):
    class Sessions(FakeClient):
        def query(self, sql, parameters=None, settings=None):
            self._record("opening")

        def insert_lines(self, table, lines, settings, deadline=None):
            self._record("insert")

    failure = driver.DatabaseError(f"Code: {code}. DB::Exception: {message}", code=code)
    with pytest.raises(raised, match=remedy) as told:
        send_rows(Sessions(failure=failure, fails_on=call), "events", [{"n": 1}], token="one")
    assert failure_of(told.value).code == code
