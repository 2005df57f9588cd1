"""Until when the first byte of an INSERT may leave, on the machine where its attempt began and on another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.clickhouse.insert import send_guard
from oncehouse.clickhouse.insert.deadline import (
    ANSWER_SLACK_SECONDS,
    SEND_WITHIN_SECONDS,
    Deadline,
    Moment,
    read_moment,
    remembered_seconds,
)
from oncehouse.clickhouse.insert.send_guard import guard_sends
from oncehouse.errors import TransientError

BEGAN = Moment(boot="here", boot_seconds=1000.0, wall_seconds=5_000_000.0)
DEADLINE = Deadline(began=BEGAN, seconds=60.0)


def later(seconds: float, *, boot: str = "here", boot_seconds: float = 1000.0, wall: float = 0.0) -> Moment:
    return Moment(
        boot=boot, boot_seconds=boot_seconds + seconds, wall_seconds=BEGAN.wall_seconds + seconds + wall
    )


@given(wall=st.floats(-1e6, 1e6))
def test_on_its_own_machine_no_jump_of_the_wall_clock_counts(wall):
    assert not DEADLINE.is_over(later(60.0, wall=wall))
    assert DEADLINE.is_over(later(60.1, wall=wall))


def test_on_another_machine_the_wall_clock_counts_on_arrival_and_boot_time_from_then_on():
    arrived = DEADLINE.counted_here(later(20.0, boot="there", boot_seconds=7.0))
    assert arrived.elapsed(later(20.0, boot="there", boot_seconds=7.0)) == pytest.approx(20.0)
    # The clock of that machine is set back while the process stands still.
    thawed = later(60.5, boot="there", boot_seconds=7.0, wall=-3600.0)
    assert arrived.is_over(thawed)
    assert not DEADLINE.is_over(thawed)


def test_a_machine_whose_clock_is_behind_gains_no_more_than_the_difference():
    arrived = DEADLINE.counted_here(later(0.0, boot="there", boot_seconds=7.0, wall=-30.0))
    assert not arrived.is_over(later(60.0, boot="there", boot_seconds=7.0, wall=-30.0))
    assert arrived.is_over(later(60.1, boot="there", boot_seconds=7.0, wall=-30.0))


def test_without_a_boot_id_the_wall_clock_has_to_do():
    nameless = Deadline(began=replace(BEGAN, boot=""), seconds=60.0)
    assert nameless.counted_here(later(1.0, boot="")) == nameless
    assert nameless.is_over(later(60.1, boot="", boot_seconds=0.0))


def test_the_same_machine_is_known_by_its_boot_and_its_clock_goes_on():
    first, second = read_moment(), read_moment()
    assert first.boot == second.boot
    assert 0 <= Deadline(began=first, seconds=1.0).elapsed(second) < 1.0


@given(timeout=st.floats(0.1, 1e5), difference=st.floats(0, 1e4))
def test_an_insert_cannot_be_under_way_for_longer_than_its_token_is_relied_on(timeout, difference):
    under_way = SEND_WITHIN_SECONDS + difference + timeout + ANSWER_SLACK_SECONDS
    assert under_way <= remembered_seconds(insert_timeout=timeout, clock_difference=difference)


def test_an_insert_that_was_given_up_on_another_machine_names_both_clocks(monkeypatch):
    there = Moment(boot="there", boot_seconds=1.0, wall_seconds=3600.0)
    here = Moment(boot="here", boot_seconds=9.0, wall_seconds=7200.0)
    monkeypatch.setattr(send_guard, "read_moment", lambda: here)
    deadline = Deadline(began=there, seconds=180.0).counted_here(here)
    with (
        guard_sends(deadline, in_flight_seconds=30.0),
        pytest.raises(TransientError, match=r"began at 01:00:00 UTC .* here it is 02:00:00 UTC"),
    ):
        send_guard._sending.get().require_time()


def test_a_first_byte_after_the_deadline_is_refused_and_later_ones_have_their_own_time(monkeypatch):
    now = [later(59.0)]
    monkeypatch.setattr(send_guard, "read_moment", lambda: now[0])
    with guard_sends(DEADLINE, in_flight_seconds=30.0):
        sending = send_guard._sending.get()
        assert sending is not None
        sending.require_time()
        now[0] = later(89.0)
        sending.require_time()
        now[0] = later(90.5)
        with pytest.raises(TimeoutError):
            sending.require_time()
    with (
        guard_sends(DEADLINE, in_flight_seconds=30.0),
        pytest.raises(TransientError, match="Nothing was sent"),
    ):
        send_guard._sending.get().require_time()
    assert send_guard._sending.get() is None
