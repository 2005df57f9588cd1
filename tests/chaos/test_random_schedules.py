"""A state machine over the simulated pipeline: thousands of random schedules, crashes included, come to the same end.

A schedule that fails is told with its seed and shrunk to a plain list of steps, which is kept in `kept_schedules.json`
and played in every session. Each planted bug must be found by the same schedules, so that a machine that cannot fail
would show; what found it is kept as well, and must go on to find it.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from kept_schedules import Kept, load_kept, read, spell
from simulated_clickhouse import FAULTS, UnknownStatementError
from simulation import POINTS, Step, simulate

from oncehouse.clickhouse.insert import insert_batch, lost_answer, send_guard
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.errors import OffsetGapError
from oncehouse.ledger.catalog import epochs, registration, retention
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.lease_terms import Terms
from oncehouse.ledger.storage import key_index
from oncehouse.pipeline.ingest import epoch
from oncehouse.pipeline.load import attempt

SEEDS = range(11, 21)
A_SEED = 1000
"""Schedules of each seed."""
PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, ImportError, UnknownStatementError)
"""A planted bug that no longer fits what it replaces, or a simulation that lags behind: nothing that it found."""
KEPT = load_kept()
FIRST = Step(kind="produce", numbers=(0, 1, 2, 3, 2))
TROUBLE = (
    Step(kind="write_by_others", numbers=(300,)),
    Step(kind="pass_time", numbers=(700,)),
    Step(kind="pass_time", numbers=(4000,)),
    Step(kind="fail_over"),
    Step(kind="deliver"),
    Step(kind="promote"),
)
dies_at = st.none() | st.sampled_from(POINTS)


class PipelineMachine(RuleBasedStateMachine):
    """What may happen to a pipeline, in any order; every step may end with the process."""

    schedules = 0
    steps: ClassVar[list[Step]] = []
    """Of the schedule that was played last."""

    def __init__(self) -> None:
        super().__init__()
        PipelineMachine.schedules += 1
        PipelineMachine.steps.clear()
        self._open = ExitStack()
        self._sound = True

    @initialize(set_up=st.sampled_from([None, "replicate", "switch_sessions_off"]))
    def begin(self, set_up: str | None) -> None:
        self.simulation = self._open.enter_context(simulate())
        self.simulation.do(FIRST)
        if set_up is not None:
            self._do(Step(kind=set_up))

    @rule(partition=st.integers(0, 1), ids=st.lists(st.integers(0, 30), min_size=1, max_size=12))
    def produce(self, partition: int, ids: list[int]) -> None:
        self._do(Step(kind="produce", numbers=(partition, *ids)))

    @rule(size=st.integers(1, 12), small=st.integers(0, 1), dies_at=dies_at)
    def settle(self, size: int, small: int, dies_at: str | None) -> None:
        self._do(Step(kind="settle", numbers=(size, small), dies_at=dies_at))

    @rule()
    def cut(self) -> None:
        self._do(Step(kind="cut"))

    @rule(fault=st.sampled_from(FAULTS), dies_at=dies_at)
    def load(self, fault: int, dies_at: str | None) -> None:
        self._do(Step(kind="load", numbers=(fault,), dies_at=dies_at))

    @rule(fault=st.sampled_from(FAULTS), meanwhile=st.lists(st.sampled_from(TROUBLE), max_size=2))
    def load_twice(self, fault: int, meanwhile: list[Step]) -> None:
        """A whole attempt, what happens after it, and the next one: otherwise that takes much luck."""
        self._do(Step(kind="settle", numbers=(12, 1)))
        self._do(Step(kind="cut"))
        for step in (Step(kind="load", numbers=(fault,)), *meanwhile, Step(kind="load", numbers=(0,))):
            self._do(step)

    @rule()
    def retry(self) -> None:
        self._do(Step(kind="retry"))

    @rule(blocks=st.sampled_from([1, 20, 300]))
    def write_by_others(self, blocks: int) -> None:
        self._do(Step(kind="write_by_others", numbers=(blocks,)))

    @rule(seconds=st.sampled_from([60, 700, 4000]))
    def pass_time(self, seconds: int) -> None:
        self._do(Step(kind="pass_time", numbers=(seconds,)))

    @rule(kind=st.sampled_from(["fail_over", "fetch", "deliver", "leave_standby_behind", "promote"]))
    def disturb(self, kind: str) -> None:
        self._do(Step(kind=kind))

    @rule(
        kind=st.sampled_from(["compact", "rebuild", "rekey", "prepare", "finish", "retain", "take_over"]),
        dies_at=dies_at,
    )
    def renew(self, kind: str, dies_at: str | None) -> None:
        self._do(Step(kind=kind, dies_at=dies_at))

    def teardown(self) -> None:
        with self._open:
            if self._sound and hasattr(self, "simulation"):
                self.simulation.drain()
                self.simulation.assert_exact()

    def _do(self, step: Step) -> None:
        PipelineMachine.steps.append(step)
        try:
            self.simulation.do(step)
            self.simulation.assert_nothing_is_doubled()
        except BaseException:
            self._sound = False
            raise


def play_schedules(number: int, *, from_seed: int) -> int:
    """Return how many schedules ran; raise the first failure, with its steps in `PipelineMachine.steps`."""
    PipelineMachine.schedules = 0
    chosen = settings(
        max_examples=number,
        stateful_step_count=24,
        deadline=None,
        # A failure is shrunk below, by whole steps: Hypothesis would take minutes to do less.
        phases={Phase.generate},
        suppress_health_check=list(HealthCheck),
        # Seeds say what is played, whoever played before.
        database=None,
    )
    run_state_machine_as_test(seed(from_seed)(_new_machine()), settings=chosen)
    return PipelineMachine.schedules


def _new_machine() -> type[PipelineMachine]:
    """A seed stays with the class it was given to."""
    return type("PipelineMachine", (PipelineMachine,), {})


@pytest.mark.short
@pytest.mark.scenario("random schedules")
def test_any_schedule_comes_to_the_same_end(record_property):
    record_property("seed", 1)
    played, told = play_and_tell(1, 40)
    assert not told, told
    assert played >= 40


@pytest.mark.timeout(7200)
@pytest.mark.scenario("random schedules")
def test_ten_thousand_schedules_come_to_the_same_end(record_property):
    """In as many processes as there are cores; each plays the schedules of one seed after another."""
    record_property("seed", SEEDS[0])
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        results = list(processes.map(play_seed, SEEDS))
    assert not any(told for _, told in results), "\n".join(told for _, told in results)
    assert sum(played for played, _ in results) >= 10_000


def play_seed(number: int) -> tuple[int, str]:
    # What was loaded so far stays: no need to look at it whenever garbage is collected.
    gc.freeze()
    return play_and_tell(number, A_SEED)


def play_and_tell(from_seed: int, number: int) -> tuple[int, str]:
    """How many schedules were played; of the first that failed the seed, the error, and how to keep it."""
    try:
        return play_schedules(number, from_seed=from_seed), ""
    except Exception as error:  # noqa: BLE001 - told to whoever asked, maybe in another process, which fails with it
        told = "".join(traceback.format_exception(error))
        steps = list(PipelineMachine.steps)
        fewer = steps if isinstance(error, PROGRAMMING_ERRORS) else shrink(steps)
        kept = Kept(seed=from_seed, steps=tuple(fewer))
        return 0, f"seed {from_seed}:\n{told}\nAdd it to kept_schedules.json:\n{spell(kept)}\n"


def shrink(steps: list[Step]) -> list[Step]:
    """Fewer and fewer steps, as long as what is left fails."""
    size = len(steps)
    while size:
        for start in range(0, len(steps), size):
            fewer = steps[:start] + steps[start + size :]
            if fails(fewer):
                return shrink(fewer)
        size //= 2
    return steps


def fails(steps: list[Step]) -> bool:
    try:
        play(steps)
    except PROGRAMMING_ERRORS:
        raise
    except Exception:  # noqa: BLE001 - a wrong end or an error on the way
        return True
    return False


def ask_no_index() -> Iterator[None]:
    """The key index is not asked for what was seen before."""
    # For the ingest alone: the oracle has to see the index as it is.
    with patch.object(epoch, "segments", SimpleNamespace(list_segments=lambda _: ())):
        yield


def make_tokens_anew() -> Iterator[None]:
    """Each attempt of a batch has a token of its own."""
    right = insert_batch.repeatable_settings

    def with_another_token(client, _token, called):
        return right(client, called, called)

    with patch.object(insert_batch, "repeatable_settings", with_another_token):
        yield


def ignore_fencing() -> Iterator[None]:
    """A stage's writes do not look at its token."""
    with patch.object(Catalog, "_fence", lambda *_: 0):
        yield


def begin_anywhere() -> Iterator[None]:
    """A range is registered wherever it starts, and reading begins a record too late."""
    positions, anywhere = epochs.read_positions, register_anywhere()

    def too_late(catalog: Catalog) -> dict[tuple[str, int], int]:
        return {place: offset + 1 for place, offset in positions(catalog).items()}

    with (
        patch.object(epochs, "read_positions", too_late),
        patch.object(registration, "_advance", anywhere),
    ):
        yield


def sweep_everything() -> Iterator[None]:
    """The sweep does not ask the catalog which files it names."""
    with patch.object(retention, "registered_paths", lambda _: set()):
        yield


def lose_a_key_in_a_merge() -> Iterator[None]:
    """A merged segment misses its last key."""
    merge = key_index.merge

    def short(tables):
        merged = merge(tables)
        return merged.take(slice(0, max(len(merged) - 1, 1)))

    with patch.object(key_index, "merge", short):
        yield


def let_the_last_win() -> Iterator[None]:
    """Of equal ids in an epoch the last is taken, not the first."""
    right = key_index.first_of_each
    with patch.object(key_index, "first_of_each", lambda keys: right(keys.take(slice(None, None, -1)))[::-1]):
        yield


def trust_a_catalog_that_is_behind() -> Iterator[None]:
    """Nobody remembers how far the catalog had come, neither the process nor a mark outside of it."""
    with (
        patch.object(Terms, "find", lambda *_: None),
        patch.object(Terms, "newest", lambda *_: None),
    ):
        yield


def count_no_blocks_of_others() -> Iterator[None]:
    """What others have inserted since the first attempt is not counted."""
    with patch.object(attempt, "blocks_between", lambda *_: 0):
        yield


def insert_where_all_is_there() -> Iterator[None]:
    """A batch whose rows were all found is sent once more for its views."""
    right = lost_answer.decide_retry

    def once_more(request, *, found: int, **facts: bool):
        return (
            lost_answer.RetryDecision.INSERT
            if found == request.rows
            else right(request, found=found, **facts)
        )

    with (
        patch.object(lost_answer, "decide_retry", once_more),
        # It would keep the batch from a view that has forgotten it.
        patch.object(lost_answer, "find_forgetful_target", lambda *_, **__: None),
    ):
        yield


def send_however_late() -> Iterator[None]:
    """A process that stood still sends its INSERT when it wakes up."""
    with patch.object(send_guard._SendLimit, "require_time", lambda _: None):
        yield


def let_late_inserts_in() -> Iterator[None]:
    """An INSERT needs no session, so the server takes one that nobody waits for any more."""
    with patch.object(insert_batch, "session_settings", lambda _: {}):
        yield


def read_from_any_replica() -> Iterator[None]:
    """The replica that answers is not brought in step before its rows are counted."""
    with patch.object(lost_answer, "read_in_step", lambda client, _tables, read: read(client)):
        yield


PLANTED = {
    plant.__name__: plant
    for plant in (
        ask_no_index,
        make_tokens_anew,
        ignore_fencing,
        begin_anywhere,
        sweep_everything,
        lose_a_key_in_a_merge,
        let_the_last_win,
        trust_a_catalog_that_is_behind,
        count_no_blocks_of_others,
        insert_where_all_is_there,
        send_however_late,
        let_late_inserts_in,
        read_from_any_replica,
    )
}


def find(bug: str) -> Kept | None:
    """The first of the ten thousand schedules that notices the bug, with as few of its steps as do too."""
    with contextmanager(PLANTED[bug])():
        for number in SEEDS:
            try:
                play_schedules(A_SEED, from_seed=number)
            except PROGRAMMING_ERRORS:
                raise
            except Exception:  # noqa: BLE001 - a bug may show as a wrong end or as an error on the way
                return Kept(seed=number, bug=bug, steps=tuple(shrink(list(PipelineMachine.steps))))
    return None


@pytest.mark.timeout(1800)
@pytest.mark.defect("random schedules")
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found_within_the_ten_thousand(bug, record_property):
    found = find(bug)
    assert found is not None, PLANTED[bug].__doc__
    record_property("seed", found.seed)
    print(spell(found))  # what to keep of it
    assert not fails(list(found.steps)), "without the bug they come to their end"


@pytest.mark.short
@pytest.mark.parametrize("drifted", [TypeError, UnknownStatementError])
def test_a_planted_bug_that_no_longer_fits_is_not_taken_for_found(monkeypatch, drifted):
    def plant() -> Iterator[None]:
        with patch.object(key_index, "merge", side_effect=drifted("takes other arguments")):
            yield

    monkeypatch.setitem(PLANTED, "drifted", plant)
    with pytest.raises(drifted, match="takes other arguments"):
        find("drifted")
    with contextmanager(plant)(), pytest.raises(drifted, match="takes other arguments"):
        fails([Step(kind="settle", numbers=(5, 0)), Step(kind="rebuild")])


@pytest.mark.short
def test_a_schedule_that_fails_is_told_with_few_steps_that_fail_too():
    noise = Step(kind="retry")
    guilty = [Step(kind="produce", numbers=(0, 7)), Step(kind="settle", numbers=(12, 1))]
    again = [Step(kind="produce", numbers=(0, 7)), Step(kind="settle", numbers=(12, 1))]
    with contextmanager(ask_no_index)():
        few = shrink([noise, *guilty, noise, noise, *again, noise])
        assert fails(few)
    assert noise not in few
    assert len(few) <= 4
    assert not fails(few), "without the bug they come to their end"


# A schedule in which most of what can go wrong does.
SCHEDULE = [
    Step(kind="settle", numbers=(12, 1)),
    Step(kind="produce", numbers=(1, 2, 3, 9)),
    Step(kind="settle", numbers=(12, 0), dies_at="before registering"),
    Step(kind="settle", numbers=(12, 0)),
    Step(kind="cut"),
    Step(kind="load", numbers=(3,), dies_at="after inserting"),
    Step(kind="load", numbers=(0,)),
]


def play(schedule: list[Step]) -> None:
    with simulate() as simulation:
        simulation.do(FIRST)
        for step in schedule:
            simulation.do(step)
            simulation.assert_nothing_is_doubled()
        simulation.drain()
        simulation.assert_exact()


@pytest.mark.short
def test_a_known_schedule_comes_to_its_end():
    play(SCHEDULE)


@pytest.mark.short
@pytest.mark.scenario("random schedules")
@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_a_schedule_that_failed_once_comes_to_its_end(kept):
    play(list(kept.steps))


@pytest.mark.short
@pytest.mark.defect("random schedules")
@pytest.mark.parametrize("kept", [kept for kept in KEPT if kept.bug], ids=lambda kept: kept.name)
def test_a_schedule_that_found_a_bug_still_finds_it(kept):
    with contextmanager(PLANTED[kept.bug])():
        assert fails(list(kept.steps))


@pytest.mark.short
def test_of_every_planted_bug_the_schedule_is_kept_that_found_it():
    assert {kept.bug for kept in KEPT if kept.bug} == set(PLANTED)


@pytest.mark.short
def test_a_schedule_that_fails_is_told_with_its_seed_and_what_to_keep():
    with contextmanager(ignore_fencing)():
        _, told = play_and_tell(SEEDS[0], A_SEED)
    assert told.startswith(f"seed {SEEDS[0]}:")
    *_, line = told.splitlines()
    kept = read(line)
    assert kept.seed == SEEDS[0]
    with contextmanager(ignore_fencing)():
        assert fails(list(kept.steps))


@pytest.mark.short
def test_a_range_that_was_settled_already_is_refused_by_the_ledger(monkeypatch):
    monkeypatch.setattr(epochs, "read_positions", lambda _: {})
    with pytest.raises(OffsetGapError, match="the ledger ends at 4"):
        play(SCHEDULE)
