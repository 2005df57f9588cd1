"""Random schedules over a simulated road, crashes included, always come to the same end."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import POINTS, Step, simulate

from oncehouse.errors import OffsetGapError
from oncehouse.ledger import epochs
from oncehouse.pipeline import ingest

ids = st.lists(st.integers(0, 30), min_size=1, max_size=12)
steps = st.one_of(
    st.builds(lambda p, found: Step(kind="produce", numbers=(p, *found)), st.integers(0, 1), ids),
    st.builds(
        lambda size, small, dies: Step(kind="settle", numbers=(size, small), dies_at=dies),
        st.integers(1, 12),
        st.integers(0, 1),
        st.none() | st.sampled_from(POINTS),
    ),
    st.just(Step(kind="cut")),
    st.builds(
        lambda fault, dies: Step(kind="load", numbers=(fault,), dies_at=dies),
        st.integers(0, 3),
        st.none() | st.sampled_from(POINTS),
    ),
    st.just(Step(kind="retry")),
    st.builds(
        lambda kind, dies: Step(kind=kind, dies_at=dies),
        st.sampled_from(["compact", "rebuild", "rekey", "retain", "take_over"]),
        st.none() | st.sampled_from(POINTS),
    ),
)
schedules = st.lists(steps, min_size=5, max_size=40)
unhurried = [HealthCheck.too_slow, HealthCheck.data_too_large]


def play(schedule: list[Step]) -> None:
    with simulate() as simulation:
        simulation.do(Step(kind="produce", numbers=(0, 1, 2, 3, 2)))
        for step in schedule:
            simulation.do(step)
        simulation.drain()
        simulation.assert_exact()


@pytest.mark.short
@settings(deadline=None, max_examples=25, suppress_health_check=unhurried, print_blob=True)
@given(schedules)
def test_any_schedule_comes_to_the_same_end(schedule):
    play(schedule)


@pytest.mark.timeout(1800)
@settings(deadline=None, max_examples=1000, suppress_health_check=unhurried, print_blob=True)
@given(schedules)
def test_many_schedules_come_to_the_same_end(schedule):
    play(schedule)


SCHEDULE = [
    Step(kind="settle", numbers=(12, 1)),
    Step(kind="produce", numbers=(1, 2, 3, 9)),
    Step(kind="settle", numbers=(12, 0), dies_at="before registering"),
    Step(kind="settle", numbers=(12, 0)),
    Step(kind="cut"),
    Step(kind="load", numbers=(3,), dies_at="after inserting"),
    Step(kind="load", numbers=(0,)),
]


@pytest.mark.short
def test_the_schedule_of_the_seeded_defects_is_sound_without_them():
    play(SCHEDULE)


@pytest.mark.short
def test_an_index_that_is_not_asked_fails_a_schedule(monkeypatch):
    monkeypatch.setattr(ingest.segments, "list_segments", lambda _: ())
    with pytest.raises(AssertionError, match="came more than once"):
        play(SCHEDULE)


@pytest.mark.short
def test_a_table_that_forgets_tokens_fails_a_schedule():
    class Forgetful(set):
        def __contains__(self, _: object) -> bool:
            return False

    with simulate() as simulation:
        simulation.destination.tokens = Forgetful()
        simulation.do(Step(kind="produce", numbers=(0, 1, 2, 3, 2)))
        for step in SCHEDULE:
            simulation.do(step)
        simulation.drain()
        with pytest.raises(AssertionError, match="came more than once"):
            simulation.assert_exact()


@pytest.mark.short
def test_a_range_that_was_settled_already_is_refused_by_the_ledger(monkeypatch):
    monkeypatch.setattr(epochs, "read_positions", lambda _: {})
    with pytest.raises(OffsetGapError, match="the ledger ends at 4"):
        play(SCHEDULE)
