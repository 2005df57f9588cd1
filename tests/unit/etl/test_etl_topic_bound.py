"""How far sources have come: never ahead of what one of them may still bring, and never behind what is known.

The property plays loaders that bring rows in any order and declare what they have brought, a Fact of one of them, and
a Fact that is joined with it. Planning, offsets and reaches are the real ones; tables are lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.errors import PermanentError
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.scheduler.due_steps import due_steps
from oncehouse.etl.scheduler.topic_bound import TopicBounds, find_decisive_tables, find_declared
from oncehouse.etl.state.decision import DueStep, EmptyRange, WaitingTopic
from oncehouse.etl.state.declarations import declare, withdraw
from oncehouse.etl.state.models import Offset, SourceState
from oncehouse.etl.state.position import MAX_ID, START, Position
from oncehouse.etl.state.topic_lease import INSERTING, new_offset

QUIET = Topic(topic="Quiet", dst="stage.quiet")
MAIN = Topic(topic="Main", dst="stage.main")
FIRST = Topic(topic="First", dst="dwh.first", depends_on=("stage.quiet",), maxstep_rows=3)
JOINED = Topic(topic="Joined", dst="dwh.joined", depends_on=("stage.main", "dwh.first"), maxstep_rows=2)
DAYS = Topic(topic="Days", dst="dwh.days", depends_on=("stage.quiet",), template=Template.RELOAD)
LINEAGE = (QUIET, MAIN, FIRST, JOINED)
FAR_MS = 1 << 40


def at(time_ms: int, id_: int = MAX_ID) -> Position:
    return Position(time_ms=time_ms, id=id_)


def offset(topic: str, last: Position, **more: object) -> Offset:
    return Offset(topic=topic, last=last, next=last, **more)  # type: ignore[arg-type]


def held(**newest: Position | None) -> dict[str, SourceState]:
    return {
        f"{name.replace('_', '.')}": SourceState(table=name.replace("_", "."), newest=one)
        for name, one in newest.items()
    }


def decide(topics, offsets, sources, *, clock_ms=FAR_MS, known_empty=None):
    declared = find_declared(topics, offsets)
    work = [topic for topic in topics if topic.depends_on]
    return due_steps(
        work, offsets, sources, 1, clock_ms=clock_ms, declared=declared, known_empty=known_empty or {}
    )


def test_a_declaration_counts_in_place_of_the_newest_row():
    sources = held(stage_quiet=at(50, 5))
    for last, upper in ((at(20, 7), at(20, 7)), (at(90, 0), at(90, 0))):
        (decision,) = decide((QUIET, FIRST), {"Quiet": offset("Quiet", last)}, sources)
        assert isinstance(decision, DueStep)
        assert decision.upper == upper


@pytest.mark.parametrize(
    ("newest", "declared", "clock_ms", "settled"),
    [
        (at(50, 5), None, FAR_MS, at(50, 5)),  # more rows of time 50 may come
        (at(50, 5), None, 50, at(50, 5)),
        (at(50, 5), None, 49, at(49)),
        (at(50, 5), at(50), FAR_MS, at(50)),  # declared: all rows of time 50 are there
        (at(50, 5), at(50, 7), FAR_MS, at(49)),
        (at(50, 5), at(90), FAR_MS, at(90)),
        (None, None, FAR_MS, None),
    ],
)
def test_a_gap_is_covered_up_to_the_newest_row_or_as_far_as_is_declared(newest, declared, clock_ms, settled):
    known = {} if declared is None else {"stage.quiet": declared}
    reaches = TopicBounds((FIRST,), {}, held(stage_quiet=newest), clock_ms, known)
    assert reaches.settled_of(FIRST) == settled


def test_of_a_declared_time_rows_may_still_come_for_those_who_join_it():
    joins = replace(JOINED, depends_on=("stage.main", "stage.quiet"))
    sources = held(stage_main=at(90, 1), stage_quiet=None)
    for last, upper_ms in ((at(20, 7), 19), (at(20), 20)):
        (decision,) = decide((QUIET, MAIN, joins), {"Quiet": offset("Quiet", last)}, sources)
        assert isinstance(decision, DueStep)
        assert (decision.upper_ms, decision.upper_id) == (upper_ms, MAX_ID)


def test_a_source_without_rows_or_declaration_is_waited_for_and_one_with_a_declaration_is_not():
    sources = held(stage_main=at(90, 1), stage_quiet=None)
    joins = replace(JOINED, depends_on=("stage.main", "stage.quiet"))
    (waiting,) = decide((QUIET, MAIN, joins), {}, sources)
    assert waiting == WaitingTopic(
        topic=joins, offset=new_offset("Joined"), reason="no rows yet in stage.quiet"
    )
    (due,) = decide((QUIET, MAIN, joins), {"Quiet": offset("Quiet", at(10))}, sources)
    assert isinstance(due, DueStep)


def test_a_declaration_that_goes_back_undoes_nothing_and_is_named():
    offsets = {"Quiet": offset("Quiet", at(20, 0)), "First": offset("First", at(40, 1))}
    (waiting,) = decide((QUIET, FIRST), offsets, held(stage_quiet=at(50, 5)))
    assert isinstance(waiting, WaitingTopic)
    assert waiting.reason == "stage.quiet is declared to be at 1970-01-01 00:00:00.020, behind the others"


def test_a_fact_with_nothing_to_build_has_come_as_far_as_it_may_go():
    sources = held(stage_quiet=at(10, 1), stage_main=at(60, 1))
    offsets = {"Quiet": offset("Quiet", at(80)), "First": offset("First", at(10, 1))}
    (_, joined) = decide(LINEAGE, offsets, sources)
    assert isinstance(joined, DueStep)
    assert joined.upper_ms == 60
    delayed = replace(FIRST, delay_seconds=0.05)
    (_, joined) = decide((QUIET, MAIN, delayed, JOINED), offsets, sources, clock_ms=100)
    assert joined.upper_ms == 50, "its own delay holds up who waits for it"
    for busy in (
        replace(offsets["First"], next=at(12), state=INSERTING),
        offset("First", at(9, 1)),  # a row is left to build
    ):
        (_, joined) = decide(LINEAGE, {**offsets, "First": busy}, sources)
        assert joined.upper_ms == busy.last.time_ms


def test_rows_that_must_not_be_missed_are_those_by_which_others_go_ahead():
    of_first = replace(JOINED, topic="Third", dst="dwh.third", depends_on=("dwh.first",))
    assert find_decisive_tables((*LINEAGE, of_first), {"stage.quiet": at(1)}) == {"stage.quiet", "dwh.first"}
    assert find_decisive_tables((*LINEAGE, of_first), {}) == set()


def test_a_rebuild_is_not_due_for_a_declaration_alone():
    sources = held(stage_quiet=at(10, 1))
    offsets = {"Quiet": offset("Quiet", at(80)), "Days": offset("Days", at(10, 1))}
    assert decide((QUIET, DAYS), offsets, sources)[0].reason == "nothing new"
    assert decide((QUIET, DAYS), offsets, held(stage_quiet=at(11, 1)))[0].upper == at(11, 1)


def test_nothing_is_looked_for_again_until_the_delay_lets_the_first_row_through():
    delayed = replace(FIRST, delay_seconds=0.05)
    sources = held(stage_quiet=at(90, 1))
    empty = {"First": EmptyRange(last=START, upper=at(40), first=at(90, 1))}
    (waiting,) = decide((delayed,), {}, sources, clock_ms=120, known_empty=empty)
    assert waiting.reason == "its new rows are after 1970-01-01 00:00:00.070, now less its delay of 0.05 s"
    assert isinstance(decide((delayed,), {}, sources, clock_ms=140, known_empty=empty)[0], DueStep)
    # Behind a slow source rows may come before the first one: each step further is looked at.
    slow = {"Quiet": offset("Quiet", at(60))}
    assert isinstance(decide((QUIET, FIRST), slow, sources, known_empty=empty)[0], DueStep)


@dataclass
class Store:
    rows: dict[str, Offset] = field(default_factory=dict)

    def change(self, topic, decide, seen=None):
        del seen
        self.rows[topic] = decide(self.rows.get(topic) or new_offset(topic), 1)
        return self.rows[topic]


def test_a_declaration_goes_ahead_only_and_one_loader_makes_it():
    store = Store()
    assert declare(store, "Quiet", at(50), consumer="loader").last == at(50)
    assert declare(store, "Quiet", at(40), consumer="loader").last == at(50)
    with pytest.raises(PermanentError, match="declared by loader"):
        declare(store, "Quiet", at(60), consumer="another")
    assert declare(store, "Quiet", at(40), consumer="another", is_forced=True).last == at(40)
    assert withdraw(store, "Quiet").last == START
    assert find_declared(LINEAGE, store.rows) == {}


@dataclass
class EtlSimulation:
    declares: bool
    clock_ms: int = 0
    coming: dict[str, list[Position]] = field(default_factory=lambda: {"stage.quiet": [], "stage.main": []})
    tables: dict[str, list[Position]] = field(
        default_factory=lambda: {"stage.quiet": [], "stage.main": [], "dwh.first": [], "dwh.joined": []}
    )
    offsets: dict[str, Offset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Who brings rows in any order declares before the first one."""
        if self.declares:
            self.offsets |= {topic.topic: offset(topic.topic, at(0, 1)) for topic in (QUIET, MAIN)}

    def write(self, table: str, count: int) -> None:
        """Rows that are on their way: their loader brings them when it likes."""
        self.clock_ms += 1
        self.coming[table] += [at(self.clock_ms, number) for number in range(1, count + 1)]

    def load(self, table: str, nth: int) -> None:
        """In any order where the loader declares; in order where its rows have to say how far it has come."""
        coming = self.coming[table]
        if coming:
            self.tables[table].append(coming.pop(nth % len(coming) if self.declares else 0))

    def tell(self, topic: Topic) -> None:
        """All before the first row that is still on its way, or all before now."""
        if self.declares:
            first = min(self.coming[topic.dst], default=at(self.clock_ms + 1, 0))
            upto = at(first.time_ms, first.id - 1) if first.id else at(first.time_ms - 1)
            self.offsets[topic.topic] = offset(topic.topic, upto)

    def run(self) -> bool:
        newest = {
            f"{table.replace('.', '_')}": max(rows, default=None) for table, rows in self.tables.items()
        }
        decisions = decide(LINEAGE, self.offsets, held(**newest), clock_ms=self.clock_ms + 1)
        done = [self.step(one) for one in decisions if isinstance(one, DueStep)]
        return any(done)

    def step(self, due: DueStep) -> bool:
        topic = due.topic
        rows = sorted(one for one in self.tables[topic.depends_on[0]] if due.offset.last < one <= due.upper)
        taken = rows[: topic.maxstep_rows]
        if not taken:
            return False
        for table in ("stage.quiet", "stage.main"):
            may_come = self.coming[table]
            if table == topic.depends_on[0]:
                assert all(one > taken[-1] for one in may_come), (
                    f"{topic.topic} leaves rows of {table} behind"
                )
            elif topic is JOINED and self.declares:
                assert all(one.time_ms > taken[-1].time_ms for one in may_come), "joined too early"
        if topic is JOINED:
            due_first = [one for one in self.tables["stage.quiet"] if one.time_ms <= taken[-1].time_ms]
            assert set(due_first) <= set(self.tables["dwh.first"]), "joined with a Fact that is behind"
        self.tables[topic.dst] += taken
        splits = any(one.time_ms == taken[-1].time_ms for one in rows[len(taken) :])
        row = offset(topic.topic, taken[-1])
        self.offsets[topic.topic] = replace(row, topic_state=replace(row.topic_state, splits_time=splits))
        return True


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([QUIET, MAIN]), st.integers(1, 3)),
    st.tuples(st.just("load"), st.sampled_from([QUIET, MAIN]), st.integers(0, 5)),
    st.tuples(st.just("tell"), st.sampled_from([QUIET, MAIN]), st.just(0)),
    st.tuples(st.just("run"), st.just(MAIN), st.just(0)),
)


def play(simulation: EtlSimulation, actions) -> None:
    for kind, topic, number in actions:
        match kind:
            case "write":
                simulation.write(topic.dst, number)
            case "load":
                simulation.load(topic.dst, number)
            case "tell":
                simulation.tell(topic)
            case _:
                simulation.run()


def finish(simulation: EtlSimulation) -> None:
    """Everything is loaded, nothing more comes, and the loaders say so."""
    for topic in (QUIET, MAIN):
        while simulation.coming[topic.dst]:
            simulation.load(topic.dst, 0)
        simulation.tell(topic)
    for _ in range(500):
        if not simulation.run():
            break
    assert simulation.tables["dwh.first"] == sorted(simulation.tables["stage.quiet"])
    assert simulation.tables["dwh.joined"] == sorted(simulation.tables["stage.main"])


@given(st.lists(ACTIONS, max_size=60))
def test_declared_sources_lose_no_row_and_hold_nothing_up_when_they_are_quiet(actions):
    simulation = EtlSimulation(declares=True)
    play(simulation, actions)
    finish(simulation)


@given(st.lists(ACTIONS, max_size=60))
def test_sources_that_declare_nothing_lose_no_row(actions):
    play(EtlSimulation(declares=False), actions)


QUIET_SOURCE = [("write", MAIN, 2), ("load", MAIN, 0), ("load", MAIN, 0)]


def test_declarations_that_are_ignored_would_be_caught(monkeypatch):
    """The seeded defect, and how it once was: a source without new rows stalls its Facts for ever."""
    monkeypatch.setattr("test_etl_topic_bound.find_declared", lambda _topics, _offsets: {})
    simulation = EtlSimulation(declares=True)
    play(simulation, QUIET_SOURCE)
    with pytest.raises(AssertionError):
        finish(simulation)


def test_a_fact_that_is_taken_to_be_idle_with_rows_left_would_be_caught(monkeypatch):
    """The seeded defect: what waits for a Fact reads ahead of it."""
    monkeypatch.setattr(
        TopicBounds, "newest_of", lambda self, topic: START if topic is FIRST else _newest(self, topic)
    )
    simulation = EtlSimulation(declares=True)
    actions = [("write", QUIET, 3), ("write", MAIN, 1), *[("load", QUIET, 0)] * 3, ("load", MAIN, 0)]
    with pytest.raises(AssertionError, match="behind"):
        play(simulation, [*actions, ("tell", QUIET, 0), ("tell", MAIN, 0), ("run", MAIN, 0)])


def test_a_newest_row_that_counts_beside_a_declaration_would_be_caught(monkeypatch):
    """The seeded defect: a loader brings a later row first, and its table is taken to have come that far."""
    monkeypatch.setattr("test_etl_topic_bound.find_declared", lambda _topics, _offsets: {})
    simulation = EtlSimulation(declares=True)
    with pytest.raises(AssertionError, match="leaves rows"):
        play(simulation, [("write", QUIET, 3), ("load", QUIET, 2), ("tell", QUIET, 0), ("run", MAIN, 0)])


_newest = TopicBounds.newest_of
