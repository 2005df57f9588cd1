"""Which message may run next, and what an attempt's end means: decisions without any database."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError, OperationalError

from inbox_examples import message
from oncehouse.errors import FencedError, PermanentError, TransientError
from oncehouse.messaging.inbox.handler_call import NotClaimedError, Phase, classify_failure
from oncehouse.messaging.inbox.key_queues import MOST_OF_A_KEY, KeyQueues
from oncehouse.messaging.inbox.types import AttemptFailed, AttemptSucceeded, AttemptWithdrawn, PendingMessage


def row(sequence: int, key: int, *, attempts: int = 0, answered: int = 0) -> PendingMessage:
    return PendingMessage(
        sequence=sequence,
        key_hash=key,
        bucket=key % 4,
        attempts=attempts,
        answered=answered,
        message=message(str(sequence)),
    )


def queues(*rows: PendingMessage) -> KeyQueues:
    made = KeyQueues(max_attempts=3)
    made.add(rows)
    return made


def sequences(rows) -> list[int]:
    return [one.sequence for one in rows]


def test_the_first_of_each_key_runs_and_the_next_when_it_is_done():
    made = queues(row(1, 7), row(2, 7), row(3, 8))
    assert sequences(made.choose(4).run) == [1, 3]
    assert made.choose(4).run == ()
    made.end(AttemptSucceeded(waiting=row(1, 7)))
    assert sequences(made.choose(4).run) == [2]


def test_no_more_run_than_there_are_places():
    made = queues(*(row(n, n) for n in range(5)))
    assert sequences(made.choose(2).run) == [0, 1]
    assert made.choose(0).run == ()


@pytest.mark.parametrize(
    "outcome", [AttemptFailed(waiting=row(1, 7), error="x"), AttemptWithdrawn(waiting=row(1, 7), reason="x")]
)
def test_what_is_not_done_makes_its_key_forgotten(outcome):
    made = queues(row(1, 7), row(2, 7), row(3, 8))
    made.choose(1)
    made.end(outcome)
    assert made.keys == {8}


def test_keys_that_run_or_wait_here_are_not_read_again():
    made = queues(row(1, 7), row(2, 8))
    made.choose(1)
    assert made.keys == {7, 8}
    assert made.ready == 1


def test_a_busy_key_leaves_room_for_others():
    made = queues(*(row(n, 7) for n in range(100)))
    done = 0
    while choice := made.choose(1).run:
        made.end(AttemptSucceeded(waiting=choice[0]))
        done += 1
    assert done == MOST_OF_A_KEY


def test_buckets_of_others_are_forgotten_while_what_runs_goes_on():
    made = queues(row(1, 4), row(2, 5), row(3, 4))
    made.choose(1)
    made.keep_only({1})
    assert sequences(made.running) == [1]
    assert made.keys == {4, 5}
    made.end(AttemptSucceeded(waiting=row(1, 4)))
    assert sequences(made.choose(4).run) == [2]


def test_what_may_have_killed_a_worker_runs_alone():
    made = queues(row(1, 7), row(2, 8, attempts=1))
    assert sequences(made.choose(4).run) == [2], "before all others"
    made.add([row(3, 9)])
    assert made.choose(4).run == (), "nothing beside it"
    made.end(AttemptSucceeded(waiting=row(2, 8)))
    assert sequences(made.choose(4).run) == [1, 3]


def test_it_waits_until_nothing_else_runs():
    made = queues(row(1, 7))
    made.choose(4)
    made.add([row(2, 8, attempts=1), row(3, 9)])
    assert made.choose(4).run == ()
    made.end(AttemptSucceeded(waiting=row(1, 7)))
    assert sequences(made.choose(4).run) == [2]


def test_what_killed_as_many_workers_as_allowed_is_parked():
    made = queues(row(1, 7, attempts=3), row(2, 8))
    choice = made.choose(4)
    assert (sequences(choice.park), sequences(choice.run)) == ([1], [2])


def test_attempts_that_were_answered_are_no_suspicion():
    assert not row(1, 7, attempts=2, answered=2).suspect
    assert sequences(queues(row(1, 7, attempts=2, answered=2), row(2, 8)).choose(4).run) == [1, 2]


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 4), st.randoms(use_true_random=False))
def test_whatever_ends_first_every_key_is_handled_in_order(keys, places, dice):
    table = deque(row(n, key) for n, key in enumerate(keys))
    made, running, done = KeyQueues(max_attempts=3), [], []
    while table or running or made.keys:
        known = made.keys
        read = [one for one in table if one.key_hash not in known][:8]
        made.add(read)
        begun = made.choose(places - len(running)).run
        running += begun
        assert len(running) <= places
        assert len({one.key_hash for one in running}) == len(running), "one key at a time"
        if not running:
            break
        ended = running.pop(dice.randrange(len(running)))
        if dice.random() < 0.7:
            table.remove(ended)
            done.append(ended)
            made.end(AttemptSucceeded(waiting=ended))
        else:
            made.end(AttemptFailed(waiting=ended, error="later"))
    assert len(done) == len(keys)
    for key in set(keys):
        order = [one.sequence for one in done if one.key_hash == key]
        assert order == sorted(order)


AWAY = OperationalError("SELECT 1", {}, Exception("away"))
REFUSED = IntegrityError("INSERT", {}, Exception("twice"))


@pytest.mark.parametrize("phase", [Phase.CLAIMING, Phase.COMMITTING])
@pytest.mark.parametrize("error", [AWAY, FencedError("x"), TransientError("x"), NotClaimedError("x")])
def test_what_the_database_or_the_lease_did_is_not_counted_against_a_message(phase, error):
    assert isinstance(classify_failure(row(1, 7), phase, error), AttemptWithdrawn)


class ConflictError(Exception):
    sqlstate = "40001"


def test_a_transaction_that_others_got_in_the_way_of_is_a_failure_with_its_waits_and_its_end():
    error = OperationalError("COMMIT", {}, ConflictError("could not serialize access"))
    assert isinstance(classify_failure(row(1, 7), Phase.COMMITTING, error), AttemptFailed)


@pytest.mark.parametrize("error", [AWAY, REFUSED, FencedError("x"), TransientError("x"), ValueError("x")])
def test_whatever_a_handler_raises_is_its_messages_failure(error):
    assert isinstance(classify_failure(row(1, 7), Phase.HANDLING, error), AttemptFailed)


def test_what_the_database_refuses_at_commit_is_the_messages_failure():
    assert isinstance(classify_failure(row(1, 7), Phase.COMMITTING, REFUSED), AttemptFailed)


def test_only_a_permanent_error_is_final():
    assert classify_failure(row(1, 7), Phase.HANDLING, PermanentError("x")).final
    assert not classify_failure(row(1, 7), Phase.HANDLING, ValueError("x")).final
    assert classify_failure(row(1, 7), Phase.HANDLING, ValueError("no\nmore")).error == "ValueError: no\nmore"
