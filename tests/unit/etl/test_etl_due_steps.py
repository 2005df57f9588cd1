"""Which topics are due, and how a step is laid out: pure decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.topic import Expectation, ExpectationKind, Template, Topic
from oncehouse.etl.preflight.server_check import evaluate_declarations
from oncehouse.etl.scheduler.due_steps import due_steps, retry_seconds
from oncehouse.etl.state import transitions
from oncehouse.etl.state.decision import DueStep, PausedTopic, ResumeStep, WaitingTopic
from oncehouse.etl.state.models import Offset, SourceState
from oncehouse.etl.state.position import START, Position, Range
from oncehouse.etl.state.topic_lease import MORE, PAUSED, SIZING, MutexError, TopicWorker, new_offset
from oncehouse.etl.state.topic_state import TopicState
from oncehouse.etl.state.transitions import Decide, OffsetSnapshot
from oncehouse.etl.steps.explain import explain
from oncehouse.etl.steps.operation_builder import rebuild_operations, step_operations, token_of
from oncehouse.etl.steps.operations import (
    DropStagingTables,
    Exchange,
    Execute,
    Expect,
    FixRange,
    Insert,
    RangeSize,
    ReplacePartitions,
    WriteLast,
    WriteNext,
)
from oncehouse.etl.steps.source_ranges import list_source_tables
from oncehouse.etl.steps.transforms import Transform, bind, find_transform

TOPIC = Topic(topic="Orders", dst="dwh.orders", depends_on=("stage.orders", "stage.customers"))
LAST = Position(time_ms=1_000, id=7)
OFFSET = Offset(topic="Orders", last=LAST, next=LAST, run_ms=500)


def state(table: str, time_ms: int | None, id_: int = 1) -> dict[str, SourceState]:
    newest = None if time_ms is None else Position(time_ms=time_ms, id=id_)
    return {table: SourceState(table=table, newest=newest)}


def sources(orders_ms: int | None, customers_ms: int | None) -> dict[str, SourceState]:
    return state("stage.orders", orders_ms) | state("stage.customers", customers_ms)


def decide(topic=TOPIC, offset=OFFSET, held=None, now_ms=10_000):
    found = sources(5_000, 3_000) if held is None else held
    (decision,) = due_steps((topic,), {"Orders": offset} if offset else {}, found, now_ms, hostid="me")
    return decision


def test_the_slowest_source_or_now_less_the_delay_bounds_a_step():
    assert decide() == DueStep(topic=TOPIC, offset=OFFSET, upper_ms=3_000)
    delayed = replace(TOPIC, delay_seconds=1.5)
    assert decide(delayed, now_ms=4_000) == DueStep(topic=delayed, offset=OFFSET, upper_ms=2_500)
    assert decide(delayed, now_ms=4_500) == DueStep(topic=delayed, offset=OFFSET, upper_ms=3_000)
    assert decide(delayed, now_ms=90_000) == DueStep(topic=delayed, offset=OFFSET, upper_ms=3_000)


def test_the_delay_goes_by_the_clock_of_clickhouse_and_not_by_that_of_the_offsets():
    (decision,) = due_steps((TOPIC,), {"Orders": OFFSET}, sources(5_000, 5_000), 90_000, clock_ms=2_000)
    assert decision == DueStep(topic=TOPIC, offset=OFFSET, upper_ms=2_000)


def test_what_a_pipeline_declares_of_a_topic_that_is_built_takes_nothing_past_its_history():
    declared = Offset(topic="Orders", last=LAST, next=LAST, consumer="oncehouse pipeline shop")
    decision = decide(offset=declared)
    assert isinstance(decision, WaitingTopic)
    assert "oncehouse etl seek Orders start" in decision.reason
    (found,) = evaluate_declarations((TOPIC,), {"Orders": declared})
    assert (found.level, found.where) == (Level.ERROR, "Orders")

    behind = Topic(topic="Sums", dst="dwh.sums", depends_on=("dwh.orders",))
    rows = sources(5_000, 3_000) | state("dwh.orders", 4_000)
    ahead = replace(declared, last=Position(time_ms=9_000, id=0), next=Position(time_ms=9_000, id=0))
    _, second = due_steps((TOPIC, behind), {"Orders": ahead}, rows, 10_000)
    assert not isinstance(second, DueStep) or second.upper_ms <= 3_000

    again = replace(declared, last=START, next=START, generation=1)
    assert isinstance(decide(offset=again), DueStep)
    assert list(evaluate_declarations((TOPIC,), {"Orders": again})) == []


def test_a_topic_without_offsets_starts_at_the_beginning():
    assert decide(offset=None) == DueStep(topic=TOPIC, offset=new_offset("Orders"), upper_ms=3_000)


def test_rows_of_the_time_that_is_done_are_still_in_reach():
    """A full step may end between two rows of one millisecond."""
    assert isinstance(decide(held=sources(1_000, 1_000) | state("stage.orders", 1_000, 8)), DueStep)


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (sources(None, 3_000), "no rows yet in stage.orders"),
        (sources(5_000, None), "no rows yet in stage.customers"),
        (state("stage.orders", 5_000), "no rows yet in stage.customers"),
        (state("stage.orders", 1_000, 7) | state("stage.customers", 9_000), "nothing new"),
        (sources(5_000, 999), "stage.customers is at 1970-01-01 00:00:00.999, behind the others"),
    ],
)
def test_a_topic_waits_and_says_what_for(held, reason):
    assert decide(held=held) == WaitingTopic(topic=TOPIC, offset=OFFSET, reason=reason)


def test_an_open_range_comes_first_and_unchanged_even_when_sources_are_gone():
    opened = replace(OFFSET, next=Position(time_ms=2_000, id=1), state="inserting")
    assert decide(offset=opened, held={}) == ResumeStep(topic=TOPIC, offset=opened)


def test_a_range_that_was_only_being_sized_is_planned_anew():
    sizing = replace(OFFSET, next=Position(time_ms=2_000, id=1), state=SIZING)
    assert decide(offset=sizing) == DueStep(topic=TOPIC, offset=sizing, upper_ms=3_000)


def test_a_paused_topic_stays_paused_open_or_not():
    paused = replace(OFFSET, next=Position(time_ms=2_000, id=1), state=PAUSED)
    assert decide(offset=paused) == PausedTopic(topic=TOPIC, offset=paused)


def test_another_host_is_left_alone_until_its_lease_has_run_out():
    held = replace(OFFSET, next=Position(time_ms=2_000, id=1), hostid="other", run_ms=10_000)
    assert decide(offset=held, now_ms=69_999).reason == "other works on it"
    assert isinstance(decide(offset=held, now_ms=70_000), ResumeStep)
    assert isinstance(decide(offset=replace(held, hostid="me"), now_ms=10_001), ResumeStep)


def test_repeat_is_the_slowest_pace_and_a_full_step_goes_on_at_once():
    paced = replace(TOPIC, repeat_seconds=60)
    assert decide(paced).reason == "runs again in 50 s"
    assert isinstance(decide(paced, now_ms=60_500), DueStep)
    assert isinstance(decide(paced, offset=replace(OFFSET, state=MORE)), DueStep)


def test_a_failed_topic_rests_longer_each_time():
    failed = replace(OFFSET, state="failed 3: no such table", run_ms=9_000)
    assert decide(offset=failed).reason == "tried again in 7 s; it has failed 3: no such table"
    assert isinstance(decide(offset=failed, now_ms=17_000), DueStep)
    rests = [retry_seconds(number) for number in range(1, 12)]
    assert rests == sorted(rests)
    assert (rests[0], rests[-1]) == (2.0, 300.0)


def test_a_table_that_another_topic_builds_has_come_as_far_as_that_topic():
    second = Topic(topic="Second", dst="dwh.second", depends_on=("stage.orders", "dwh.orders"))
    found = sources(5_000, 3_000)
    (_, decision) = due_steps((TOPIC, second), {"Orders": OFFSET}, found, 10_000)
    assert decision == DueStep(topic=second, offset=new_offset("Second"), upper_ms=1_000)
    (_, waiting) = due_steps((TOPIC, second), {}, found, 10_000)
    assert waiting.reason == "no rows yet in dwh.orders"
    assert list_source_tables((TOPIC, second)) == ("stage.orders", "stage.customers")
    third = Topic(topic="Third", dst="dwh.third", depends_on=("dwh.orders",))
    assert list_source_tables((TOPIC, third)) == ("stage.orders", "stage.customers", "dwh.orders")


@pytest.mark.parametrize("template", [Template.RELOAD, Template.RANGE])
def test_what_is_rebuilt_is_due_when_its_sources_hold_something_newer(template):
    rebuilt = replace(TOPIC, template=template)
    assert decide(rebuilt) == DueStep(topic=rebuilt, offset=OFFSET, upper_ms=3_000, upper_id=0)
    assert decide(rebuilt, held=sources(5_000, 1_000)).reason == "nothing new"


def test_a_reload_without_sources_goes_by_the_clock():
    small = Topic(topic="Orders", dst="dwh.small", template=Template.RELOAD, repeat_seconds=60)
    assert decide(small, now_ms=60_499).reason == "runs again in 0 s"
    assert decide(small, now_ms=60_500) == DueStep(topic=small, offset=OFFSET, upper_ms=60_500, upper_id=0)


SPAN = Range(last=LAST, next=Position(time_ms=3_000, id=9), rows=5, is_cut=False)
TRANSFORM = Transform(name="ETL.v", select="SELECT 1", offsets_table=None, has_range=True)


def test_next_is_written_before_and_last_after_the_insert():
    topic = replace(TOPIC, before=("SELECT 1",), after=("SELECT 2",))
    operations = step_operations(
        topic, TRANSFORM, {"a": "UInt8", "b": "UInt8"}, SPAN, hostid="me", is_fixed=True
    )
    assert [type(one) for one in operations] == [WriteNext, Execute, Insert, Execute, WriteLast]
    insert = operations[2]
    assert (
        insert.token == insert.settings["insert_deduplication_token"] == token_of("Orders", LAST, SPAN.next)
    )
    assert insert.sql == "INSERT INTO `dwh`.`orders` (`a`, `b`) SELECT `a`, `b` FROM (SELECT 1)"
    assert insert.parameters == {"last_time": "1.000", "last_id": 7, "next_time": "3.000", "next_id": 9}


def test_a_view_that_reads_the_offsets_is_sized_after_next_and_guarded():
    view = replace(TRANSFORM, offsets_table="ETL.Offsets", guard_table="ETL.Offsets", has_range=False)
    operations = step_operations(TOPIC, view, {"a": "UInt8"}, SPAN, hostid="me", is_fixed=False)
    assert [type(one) for one in operations] == [WriteNext, RangeSize, FixRange, Insert, WriteLast]
    assert operations[0].state == SIZING
    assert "`ETL`.`Offsets`" in operations[3].sql
    assert operations[3].parameters["hostid"] == "me"


def test_a_range_is_fixed_only_after_its_rows_were_looked_at():
    topic = replace(
        TOPIC, expect=(Expectation(check=ExpectationKind.ROWS, at_least=1),), before=("SELECT 1",)
    )
    columns = {"a": "UInt8"}
    operations = step_operations(topic, TRANSFORM, columns, SPAN, hostid="me", is_fixed=True)
    assert [type(one) for one in operations] == [
        WriteNext,
        Execute,
        Expect,
        FixRange,
        Insert,
        WriteLast,
    ]
    assert operations[0].state == SIZING
    again = step_operations(topic, TRANSFORM, columns, SPAN, hostid="me", is_fixed=True, is_resumed=True)
    assert [type(one) for one in again] == [WriteNext, Execute, Insert, WriteLast]


@pytest.mark.parametrize(
    ("template", "swap"), [(Template.RELOAD, Exchange), (Template.RANGE, ReplacePartitions)]
)
def test_a_rebuild_stands_aside_until_it_is_put_in_place(template, swap):
    topic = replace(TOPIC, template=template)
    operations = rebuild_operations(topic, TRANSFORM, {"a": "UInt8"}, SPAN, hostid="me", token="fresh")
    kinds = [type(one) for one in operations]
    assert kinds == [WriteNext, DropStagingTables, Execute, Insert, swap, Execute, WriteLast]
    staging = operations[4].staging
    assert operations[3].sql.startswith(f"INSERT INTO `dwh`.`{staging.removeprefix('dwh.')}` ")
    again = rebuild_operations(topic, TRANSFORM, {"a": "UInt8"}, SPAN, hostid="me", token="another")
    assert again[4].staging != staging, "each run builds a table of its own"
    assert all(explain(one) for one in operations)


def test_tokens_differ_by_topic_and_by_range():
    other = Position(time_ms=3_000, id=10)
    tokens = {
        token_of("Orders", LAST, SPAN.next),
        token_of("Orders", LAST, other),
        token_of("Orders", SPAN.next, other),
        token_of("Order", LAST, SPAN.next),
    }
    assert len(tokens) == 4
    assert token_of("Orders", LAST, other) == token_of("Orders", LAST, other)


def test_times_are_bound_as_seconds_in_every_time_zone():
    assert bind(Position(time_ms=0, id=0), Position(time_ms=1_700_000_000_005, id=2**64 - 1)) == {
        "last_time": "0.000",
        "last_id": 0,
        "next_time": "1700000000.005",
        "next_id": 2**64 - 1,
    }


def test_a_transform_file_keeps_its_text_and_asks_only_for_what_a_step_has(tmp_path: Path):
    file = tmp_path / "orders.sql"
    topic = replace(TOPIC, transform="orders.sql")
    file.write_text("SELECT * FROM t WHERE id > {last_id:UInt64} -- the end;\n;\n")
    transform = find_transform(None, topic, tmp_path, "ETL.Offsets")
    assert transform.select.strip().endswith("-- the end;")
    assert (transform.offsets_table, transform.has_range) == (None, True)
    file.write_text("SELECT {colour:String}")
    with pytest.raises(ConfigurationError, match="asks for colour"):
        find_transform(None, topic, tmp_path, None)
    with pytest.raises(ConfigurationError, match="does not exist"):
        find_transform(None, replace(topic, transform="none.sql"), tmp_path, None)


def test_a_fact_that_was_cut_within_a_time_has_not_come_to_it_for_those_who_join_it():
    """As the main source it has: then its rows are read by their ids."""
    cut = replace(OFFSET, topic_state=TopicState(splits_time=True))
    joins = Topic(topic="Sums", dst="dwh.sums", depends_on=("stage.other", "dwh.orders"))
    reads = replace(joins, depends_on=("dwh.orders",))
    held = sources(5_000, 3_000) | state("stage.other", 5_000) | state("dwh.orders", 1_000, 7)
    for topic, upper_ms in ((joins, 999), (reads, 1_000)):
        decision = due_steps((TOPIC, topic), {"Orders": cut}, held, 10_000)[1]
        assert decision == DueStep(topic=topic, offset=new_offset("Sums"), upper_ms=upper_ms)


def test_a_seek_from_what_was_seen_before_the_topic_moved_on_is_refused():
    """Whether the table holds the rows was looked at before: it may hold more of them by now."""
    store = MemoryStore()
    transitions.begin(store, TopicWorker(hostid="here"), new_offset("Orders"), next_=LAST)
    before = store.row
    transitions.commit(store, TopicWorker(hostid="here"), "Orders", rows=7)
    with pytest.raises(MutexError, match="moved on while its table was looked at"):
        transitions.seek(store, "Orders", START, seen=before)
    assert transitions.seek(store, "Orders", START, seen=store.row).last == START


@dataclass
class MemoryStore:
    row: Offset = field(default_factory=lambda: new_offset("Orders"))
    view_table: str | None = None

    def prepare(self) -> None:
        return

    def read_all(self) -> OffsetSnapshot:
        return OffsetSnapshot(offsets={"Orders": self.row}, now_ms=self.row.run_ms)

    def change(self, _topic: str, decide: Decide, seen: Offset | None = None) -> Offset:
        del seen
        now_ms = self.row.run_ms + 1
        self.row = replace(decide(self.row, now_ms), run_ms=now_ms)
        return self.row
