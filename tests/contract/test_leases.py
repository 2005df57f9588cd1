from __future__ import annotations

import itertools
import threading

import pytest

from ledger_examples import race
from oncehouse.errors import CatalogBehindError, FencedError, LeaseHeldError, TransientError
from oncehouse.ledger.catalog.leases import Heartbeat, acquire, list_leases, note_pause, release, renew
from oncehouse.ledger.models import Lease, Stage


def take(catalog, holder: str, *, stage: Stage = Stage.INGEST, lease_seconds: float = 600) -> Lease:
    return acquire(catalog, stage, holder=holder, lease_seconds=lease_seconds)


def test_a_free_lease_is_taken_and_shown(catalog):
    lease = take(catalog, "first")
    assert list_leases(catalog) == (lease,)
    assert (lease.token, lease.holder) == (1, "first")
    assert lease.expires_at > catalog.now()


def test_a_lease_of_a_live_holder_is_refused_by_name(catalog):
    held = take(catalog, "host-a:17")
    with pytest.raises(LeaseHeldError, match=r"host-a:17 \(token 1"):
        take(catalog, "host-b:18")
    assert list_leases(catalog) == (held,)


def test_each_stage_has_a_lease_of_its_own(catalog):
    take(catalog, "first")
    assert take(catalog, "second", stage=Stage.LOAD).token == 1
    assert [(lease.stage, lease.holder) for lease in list_leases(catalog)] == [
        (Stage.INGEST, "first"),
        (Stage.LOAD, "second"),
    ]


def test_a_lease_that_ran_out_on_the_catalogs_clock_is_taken_over_with_a_higher_token(catalog):
    take(catalog, "first", lease_seconds=-1)
    assert take(catalog, "second").token == 2


def test_the_old_holder_can_no_longer_renew_a_lease_that_was_taken_over(catalog):
    old = take(catalog, "first", lease_seconds=-1)
    new = take(catalog, "second")
    with pytest.raises(FencedError, match="token 1"):
        renew(catalog, old, lease_seconds=600)
    assert list_leases(catalog) == (new,)


def test_a_renewed_lease_stays_with_its_holder(catalog):
    lease = take(catalog, "first", lease_seconds=-1)
    renew(catalog, lease, lease_seconds=600)
    with pytest.raises(LeaseHeldError):
        take(catalog, "second")


def test_a_released_lease_is_free_at_once(catalog):
    release(catalog, take(catalog, "first"))
    assert take(catalog, "second").token == 2


def test_releasing_a_lease_that_was_taken_over_leaves_the_new_holder_alone(catalog):
    old = take(catalog, "first", lease_seconds=-1)
    new = take(catalog, "second")
    release(catalog, old)
    assert list_leases(catalog) == (new,)


@pytest.mark.parametrize("lease_seconds_before", [None, -1])
def test_of_several_that_race_for_a_lease_exactly_one_wins(catalog, lease_seconds_before):
    if lease_seconds_before is not None:
        take(catalog, "before", lease_seconds=lease_seconds_before)
    answers = race([lambda at=at: take(catalog, f"racer {at}") for at in range(4)])
    won = [answer for answer in answers if isinstance(answer, Lease)]
    assert len(won) == 1
    assert [type(answer) for answer in answers if answer not in won] == [LeaseHeldError] * 3
    assert list_leases(catalog) == tuple(won)


def test_a_heartbeat_keeps_a_lease_alive(catalog):
    lease = take(catalog, "first", lease_seconds=-1)
    renewed = threading.Event()
    heartbeat = Heartbeat(catalog, (lease,), lease_seconds=0.3, on_lost=lambda _: None)
    while not renewed.is_set():
        if list_leases(catalog)[0].expires_at > lease.expires_at:
            renewed.set()
    heartbeat.stop()
    assert list_leases(catalog)[0].token == lease.token


def test_a_heartbeat_tells_when_its_lease_was_taken_over(catalog):
    old = take(catalog, "first", lease_seconds=-1)
    take(catalog, "second")
    told = []
    lost = threading.Event()

    def on_lost(error) -> None:
        told.append(error)
        lost.set()

    heartbeat = Heartbeat(catalog, (old,), lease_seconds=0.03, on_lost=on_lost)
    assert lost.wait(60)
    heartbeat.stop()
    assert [type(error) for error in told] == [FencedError]


def test_a_heartbeat_that_stood_still_for_longer_than_its_leases_last_asks_until_it_hears(catalog):
    lease = take(catalog, "first")
    passed = itertools.chain([0.0, 0.03], itertools.repeat(0.07))
    answers = iter([TransientError("no files"), CatalogBehindError("it has lost something")])
    told = []
    lost = threading.Event()

    def on_resumed() -> None:
        raise next(answers)

    def on_lost(error) -> None:
        told.append(error)
        lost.set()

    heartbeat = Heartbeat(
        catalog,
        (lease,),
        lease_seconds=0.03,
        on_lost=on_lost,
        on_resumed=on_resumed,
        read_passed=lambda: next(passed),
    )
    assert lost.wait(60)
    heartbeat.stop()
    assert [type(error) for error in told] == [CatalogBehindError]


def test_a_heartbeat_that_comes_in_time_asks_nothing(catalog):
    lease = take(catalog, "first")
    beats = itertools.count()
    done = threading.Event()

    def read_passed() -> float:
        if (beat := next(beats)) == 3:
            done.set()
        return beat * 0.01

    asked: list[None] = []
    heartbeat = Heartbeat(
        catalog,
        (lease,),
        lease_seconds=0.03,
        on_lost=lambda _: None,
        on_resumed=lambda: asked.append(None),
        read_passed=read_passed,
    )
    assert done.wait(60)
    heartbeat.stop()
    assert asked == []


def test_a_pause_is_noted_on_the_lease_and_gone_with_it(catalog):
    lease = take(catalog, "first")
    note_pause(catalog, lease, "no room")
    renew(catalog, lease, lease_seconds=600)
    assert [found.pause for found in list_leases(catalog)] == ["no room"]
    note_pause(catalog, lease, None)
    assert [found.pause for found in list_leases(catalog)] == [None]
    note_pause(catalog, lease, "no room")
    release(catalog, lease)
    assert [found.pause for found in list_leases(catalog)] == [None]


def test_a_former_holder_notes_no_pause(catalog):
    lease = take(catalog, "first", lease_seconds=0)
    take(catalog, "second")
    with pytest.raises(FencedError):
        note_pause(catalog, lease, "no room")
    assert [found.pause for found in list_leases(catalog)] == [None]
