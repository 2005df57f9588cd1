"""Whom the soak kills: every kind gets its share, and no driver dies that has not registered anything."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import soak_modules  # noqa: F401 - makes the next one importable
from soak_kills import DRIVER, MOST_WITHOUT_EPOCH, SHARES, DriverState, Plan, Schedule, make_deck

EVERYBODY = {DRIVER, *SHARES}
BUSY = DriverState(epochs=1)
FRESH = DriverState(epochs=0)


def play(
    schedule: Schedule,
    *,
    present=EVERYBODY,
    driver=BUSY,
    until: float = 10_000.0,
    epoch_seconds: float = 1.0,
) -> list:
    found, now = [], 0.0
    while not schedule.is_done and now < until:
        state = replace(driver, last_epoch=int(now / epoch_seconds))
        if (kill := schedule.next_kill(now, present, state)) is not None:
            found.append((now, kill))
        now += 0.25
    return found


@given(st.integers(0, 300), st.integers())
def test_a_deck_holds_as_many_kills_as_were_asked_for_and_every_kind(kills, seed):
    deck = make_deck(kills, random.Random(seed))
    assert len(deck) == kills
    counts = Counter(deck)
    if kills >= len(SHARES):
        assert set(counts) == set(SHARES)
    assert all(abs(counts[kind] - share * kills) <= 2 for kind, share in SHARES.items())


@given(st.integers())
def test_all_kills_are_done_within_the_time_when_everybody_is_there(seed):
    plan = Plan(seconds=1200, kills=100, driver_kills=30)
    done = play(Schedule(plan, seed))
    assert Counter(kill.kind == DRIVER for _, kill in done) == {False: 100, True: 30}
    assert done[-1][0] < 1.2 * plan.seconds


def test_the_same_seed_gives_the_same_kills():
    plan = Plan(seconds=120, kills=20, driver_kills=5)
    assert play(Schedule(plan, 3)) == play(Schedule(plan, 3)) != play(Schedule(plan, 4))


def test_a_driver_without_new_epochs_is_never_killed():
    done = play(Schedule(Plan(seconds=60, kills=5, driver_kills=5), 1), driver=FRESH, until=600)
    assert len(done) == 5
    assert all(kill.kind != DRIVER for _, kill in done)


def test_a_driver_that_lost_its_epochs_by_a_restart_is_waited_for_again():
    schedule = Schedule(Plan(seconds=60, kills=0, driver_kills=1), 1)
    assert schedule.next_kill(0.0, EVERYBODY, BUSY) is None
    # It started anew before its time had come: the while after its first epoch begins once more.
    assert schedule.next_kill(60.0, EVERYBODY, FRESH) is None
    assert schedule.next_kill(60.0, EVERYBODY, BUSY) is None
    assert schedule.next_kill(70.0, EVERYBODY, BUSY) is not None


@pytest.mark.parametrize("away", SHARES)
def test_who_is_away_is_killed_later(away):
    schedule = Schedule(Plan(seconds=60, kills=10, driver_kills=0), 2)
    done = play(schedule, present=EVERYBODY - {away}, until=600)
    assert all(kill.kind != away for _, kill in done)
    assert schedule.left[0] == 10 - len(done) > 0
    assert {kill.kind for _, kill in play(schedule)} == {away}


def test_a_kill_that_found_nobody_is_drawn_again():
    schedule = Schedule(Plan(seconds=10, kills=1, driver_kills=1), 2)
    for _, kill in play(schedule):
        schedule.put_back(kill)
    assert schedule.left == (1, 1)
    assert len(play(schedule)) == 2


def test_a_pipeline_that_registers_nothing_is_left_alone_until_it_does():
    schedule = Schedule(Plan(seconds=10, kills=20, driver_kills=0), 2)
    assert len(play(schedule, until=1000, epoch_seconds=2000)) == MOST_WITHOUT_EPOCH
    assert len(play(schedule)) == 20 - MOST_WITHOUT_EPOCH
