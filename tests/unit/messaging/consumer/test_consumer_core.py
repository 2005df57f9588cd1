"""The consumer's core: events and times in, actions out. test_consumer_core_coverage holds its coverage at 100 %."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.common.backoff import Backoff
from oncehouse.messaging.consumer import events as ev
from oncehouse.messaging.consumer.batch_sizing import (
    BatchMeasurement,
    BatchSize,
    BatchSizeLimits,
    adapt_batch_size,
    estimate_cost,
    initial_batch_size,
)
from oncehouse.messaging.consumer.commit_plan import MAX_ENDS, CommittedPosition, read_plan, write_plan
from oncehouse.messaging.consumer.handler_rules import HandlerRules, Subscription
from oncehouse.messaging.consumer.partition_state import MIN_BUFFER_RECORDS
from oncehouse.messaging.consumer.records import MemoryRecord, Records, by_partition, split_errors
from oncehouse.messaging.consumer.state_machine import PAUSE_AFTER_SECONDS, StateMachine
from oncehouse.messaging.message import Message

P = ("events", 0)
Q = ("events", 1)


def records(*offsets: int, partition: int = 0, size: int = 1, topic: str = "events") -> Records:
    return Records([MemoryRecord(topic, partition, offset, None, b"x" * size) for offset in offsets])


class Drive:
    """A core and its clock; commits are acknowledged at once unless a test says otherwise."""

    def __init__(self, *, acknowledge: bool = True, jitter: float = 1.0, **rules) -> None:
        given_rules = {
            "size": 3,
            "wait_seconds": 1.0,
            "concurrency": 2,
            "attempts": 2,
            "backoff": Backoff(base_seconds=1.0, longest_seconds=8.0),
        } | rules
        self.state_machine = StateMachine(
            {"events": HandlerRules(topic="events", **given_rules)}, jitter=lambda: jitter
        )
        self.now = 100.0
        self.acknowledge = acknowledge
        self.log: list[ev.Action] = []
        self.tickets: dict[tuple[str, int], ev.Ticket] = {}

    def tell(self, event: ev.Event) -> list[ev.Action]:
        actions = self.state_machine.handle(event, self.now)
        self.log += actions
        for action in list(actions):
            if isinstance(action, ev.RunHandler | ev.Divert | ev.PreparePartition):
                self.tickets[action.ticket.partition] = action.ticket
            if isinstance(action, ev.Commit) and self.acknowledge:
                actions += self.tell(ev.Committed(partition=action.partition, position=action.position))
        return actions

    def assign(self, *partitions, offset: int | None = 0, ends: tuple[int, ...] = ()) -> None:
        for partition in partitions or (P,):
            self.tell(ev.Assigned(partition=partition, position=CommittedPosition(offset=offset, ends=ends)))

    def fetch(self, *offsets: int, partition=P, size: int = 1, due_at: float = 0.0) -> list[ev.Action]:
        found = records(*offsets, partition=partition[1], size=size)
        return self.tell(ev.RecordsFetched(partition=partition, records=found, due_at=due_at))

    def pass_time(self, seconds: float) -> list[ev.Action]:
        self.now += seconds
        return self.tell(ev.Ticked())

    def handled(self, partition=P) -> list[ev.Action]:
        return self.tell(ev.HandlerSucceeded(ticket=self.tickets[partition]))

    def failed(self, kind: ev.FailureKind = "unknown", partition=P) -> list[ev.Action]:
        return self.tell(ev.HandlerFailed(ticket=self.tickets[partition], error="no", kind=kind))


def ranges(actions: list[ev.Action]) -> list[tuple[int, int]]:
    return [
        (action.records.first_offset, action.records.last_offset)
        for action in actions
        if isinstance(action, ev.RunHandler)
    ]


def of(kind: type, actions: list[ev.Action]) -> list:
    return [action for action in actions if isinstance(action, kind)]


# Closing a batch.


def test_size_closes_a_batch():
    drive = Drive()
    drive.assign()
    assert ranges(drive.fetch(0, 1)) == []
    assert ranges(drive.fetch(2, 3)) == [(0, 2)]


def test_time_closes_a_batch():
    drive = Drive()
    drive.assign()
    drive.fetch(0)
    assert drive.state_machine.wake_at(drive.now) == drive.now + 1.0
    assert ranges(drive.pass_time(0.9)) == []
    assert ranges(drive.pass_time(0.1)) == [(0, 0)]


def test_bytes_close_a_batch_and_one_record_may_be_larger():
    drive = Drive(size=100, max_bytes=10)
    drive.assign()
    assert ranges(drive.fetch(0, 1, 2, size=4)) == [(0, 1)]
    drive.fetch(3, size=50)
    drive.handled()
    drive.handled()
    assert ranges(drive.log) == [(0, 1), (2, 2), (3, 3)]


def test_what_came_before_is_left_out():
    drive = Drive()
    drive.assign(offset=5)
    drive.fetch(3, 4)
    drive.fetch(4, 5, 6)
    drive.fetch(5, 6, 7)
    assert ranges(drive.log) == [(5, 7)]


def test_records_of_partitions_that_are_not_ours_are_left_out():
    drive = Drive()
    assert drive.fetch(0, 1, 2) == []
    assert drive.tell(ev.HandlerSucceeded(ticket=ev.Ticket(partition=P, term=1, number=1))) == []


def test_records_wait_until_they_are_due_and_those_behind_them_too():
    drive = Drive(size=2)
    drive.assign()
    drive.fetch(0, due_at=drive.now + 5)
    drive.fetch(1, due_at=drive.now + 2)
    assert drive.state_machine.wake_at(drive.now) == drive.now + 5
    assert ranges(drive.pass_time(4)) == []
    assert ranges(drive.pass_time(1)) == [(0, 1)]


# Planning, committing.


def test_a_batch_is_handed_out_only_after_its_end_is_in_kafka():
    drive = Drive(acknowledge=False)
    drive.assign(offset=None)
    (commit,) = of(ev.Commit, drive.fetch(7, 8, 9))
    assert commit.position == CommittedPosition(offset=7, ends=(9,))
    assert ranges(drive.log) == []
    assert drive.state_machine.states[P].awaits_commit
    assert ranges(drive.tell(ev.Committed(partition=P, position=commit.position))) == [(7, 9)]


def test_all_is_settled_when_nothing_runs_and_everything_done_is_committed():
    drive = Drive(acknowledge=False)
    drive.assign()
    assert drive.state_machine.is_settled()
    drive.fetch(0, 1, 2)
    drive.tell(ev.Committed(partition=P, position=CommittedPosition(offset=0, ends=(2,))))
    assert not drive.state_machine.is_settled()
    drive.handled()
    assert not drive.state_machine.is_settled()
    drive.tell(ev.Committed(partition=P, position=CommittedPosition(offset=3)))
    assert drive.state_machine.is_settled()


def test_an_answer_to_another_commit_changes_nothing():
    drive = Drive(acknowledge=False)
    drive.assign()
    drive.fetch(0, 1, 2)
    assert drive.tell(ev.Committed(partition=P, position=CommittedPosition(offset=0, ends=(1,)))) == []


def test_a_failed_commit_is_tried_again_with_back_off():
    drive = Drive(acknowledge=False)
    drive.assign()
    drive.fetch(0, 1, 2)
    drive.tell(ev.CommitFailed(partition=P, error="away"))
    assert of(ev.Commit, drive.pass_time(0.05)) == []
    assert drive.state_machine.wake_at(drive.now) < inf
    assert len(of(ev.Commit, drive.pass_time(0.05))) == 1


def test_the_next_batches_are_planned_while_one_is_handled():
    drive = Drive()
    drive.assign()
    drive.fetch(*range(12))
    assert of(ev.Commit, drive.log)[-1].position.ends == (2, 5, 8, 11)
    before = len(drive.log)
    assert ranges(drive.handled()) == [(3, 5)]
    assert of(ev.Commit, drive.log[before:])[-1].position == CommittedPosition(offset=3, ends=(5, 8, 11))


def test_who_takes_over_cuts_the_batches_that_were_planned():
    drive = Drive(size=100)
    drive.assign(offset=10, ends=(11, 14))
    drive.fetch(10)
    assert ranges(drive.log) == []
    drive.fetch(11, 12, 13, 14, 15)
    drive.handled()
    drive.handled()
    assert ranges(drive.log) == [(10, 11), (12, 14)]
    assert of(ev.Commit, drive.log)[0].position == CommittedPosition(offset=12, ends=(14,))


def test_a_plan_not_yet_cut_stays_in_the_commit():
    drive = Drive(size=100)
    drive.assign(offset=10, ends=(11, 20))
    drive.fetch(10, 11, 12)
    drive.handled()
    assert of(ev.Commit, drive.log)[-1].position == CommittedPosition(offset=12, ends=(20,))


def test_a_plan_for_what_kafka_deleted_is_forgotten():
    drive = Drive()
    drive.assign(offset=10, ends=(11, 14))
    drive.fetch(20, 21, 22)
    assert ranges(drive.log) == [(20, 22)]


def test_a_planned_batch_is_filled_however_large_it_is():
    drive = Drive(size=3)
    drive.assign(offset=0, ends=(4 * MIN_BUFFER_RECORDS,))
    drive.fetch(*range(4 * MIN_BUFFER_RECORDS))
    assert not of(ev.PausePartition, drive.log)
    drive.fetch(4 * MIN_BUFFER_RECORDS)
    assert ranges(drive.log) == [(0, 4 * MIN_BUFFER_RECORDS)]


def test_what_is_done_is_settled_after_its_commit():
    drive = Drive(diverts=True, acknowledge=False)
    drive.assign()
    drive.tell(ev.PartitionPrepared(ticket=drive.tickets[P]))
    drive.fetch(0, 1, 2)
    drive.tell(ev.Committed(partition=P, position=CommittedPosition(offset=0, ends=(2,))))
    assert not of(ev.NotifyCommitted, drive.handled())
    (settle,) = of(
        ev.NotifyCommitted, drive.tell(ev.Committed(partition=P, position=CommittedPosition(offset=3)))
    )
    assert settle.records.offsets() == [0, 1, 2]


# Side by side.


def test_partitions_run_side_by_side_up_to_the_concurrency_and_take_turns():
    drive = Drive(concurrency=2)
    three = [("events", number) for number in range(3)]
    drive.assign(*three)
    for partition in three:
        drive.fetch(*range(9), partition=partition)
    begun = [action.ticket.partition for action in of(ev.RunHandler, drive.log)]
    assert begun == three[:2]
    assert drive.state_machine.busy()
    assert not drive.state_machine.busy([three[2]])
    assert [action.ticket.partition for action in of(ev.RunHandler, drive.handled(three[0]))] == [three[2]]
    assert [action.ticket.partition for action in of(ev.RunHandler, drive.handled(three[1]))] == [three[0]]


def test_a_partition_has_one_batch_at_a_time():
    drive = Drive()
    drive.assign()
    drive.fetch(*range(9))
    assert ranges(drive.log) == [(0, 2)]


# Failures.


def test_a_failed_batch_is_retried_with_growing_waits():
    drive = Drive(attempts=9)
    drive.assign()
    drive.fetch(0, 1, 2)
    waits = []
    for _ in range(5):
        (retry,) = of(ev.RetryAt, drive.failed())
        waits.append(retry.at - drive.now)
        assert ranges(drive.pass_time(waits[-1] - 0.1)) == []
        assert ranges(drive.pass_time(0.1)) == [(0, 2)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert of(ev.RunHandler, drive.log)[-1].attempt == 6


def test_the_die_spreads_the_wait():
    drive = Drive(jitter=0.25)
    drive.assign()
    drive.fetch(0, 1, 2)
    assert of(ev.RetryAt, drive.failed())[0].at == drive.now + 0.25


def test_without_a_place_for_it_a_batch_is_retried_and_the_partition_says_why():
    drive = Drive()
    drive.assign()
    drive.fetch(0, 1, 2)
    drive.failed()
    assert drive.state_machine.states[P].stopped == ""
    for _ in range(4):
        drive.pass_time(10)
        drive.failed()
    assert len(of(ev.PartitionStopped, drive.log)) == 1
    assert "the handler fails: no" in drive.state_machine.states[P].stopped
    assert not of(ev.Bisected, drive.log)
    drive.pass_time(10)
    assert of(ev.PartitionResumed, drive.handled())
    assert drive.state_machine.states[P].stopped == ""


def ready(**rules) -> Drive:
    drive = Drive(diverts=True, **rules)
    drive.assign()
    drive.tell(ev.PartitionPrepared(ticket=drive.tickets[P]))
    return drive


def test_bisection_plans_before_it_hands_out():
    drive = ready(size=4)
    drive.fetch(0, 1, 2, 3)
    drive.acknowledge = False
    (bisected, commit) = drive.failed("permanent")
    assert bisected.size == 4
    assert commit.position == CommittedPosition(offset=0, ends=(1, 3))
    assert ranges(drive.tell(ev.Committed(partition=P, position=commit.position))) == [(0, 1)]


def test_offsets_put_aside_stay_with_their_half():
    drive = ready(size=4)
    drive.fetch(0, 1, 2, 3)
    drive.tell(ev.DivertedUntried(ticket=drive.tickets[P], offsets=frozenset({1, 2})))
    drive.failed("permanent")
    assert of(ev.RunHandler, drive.log)[-1].without == {1}
    drive.handled()
    assert of(ev.RunHandler, drive.log)[-1].without == {2}
    (divert,) = of(ev.Divert, drive.failed("permanent"))
    assert divert.records.offsets() == [3]


@given(
    st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))),
    st.integers(1, 3),
)
def test_exactly_the_poison_is_put_aside_wherever_it_stands(shape, attempts):
    size, poison = shape
    drive = ready(size=size, attempts=attempts)
    drive.fetch(*range(size))
    good, divert, tried = [], [], []
    for _ in range(20 * size):
        state = drive.state_machine.states[P]
        if state.task is None:
            if not state.closed:
                break
            drive.pass_time(10)
            continue
        work = [action for action in drive.log if isinstance(action, ev.RunHandler | ev.Divert)][-1]
        offsets = work.records.offsets()
        if isinstance(work, ev.Divert):
            divert += offsets
            drive.tell(ev.Diverted(ticket=work.ticket))
        elif poison & set(offsets):
            tried.append(offsets)
            drive.failed()
        else:
            good += offsets
            drive.handled()
    assert divert == sorted(poison)
    assert good == [offset for offset in range(size) if offset not in poison]
    assert drive.state_machine.states[P].done == size
    assert all(tried.count(offsets) <= attempts for offsets in tried)


def test_record_after_record_put_aside_slows_down_and_a_success_ends_that():
    drive = ready(size=1)
    drive.fetch(0, 1, 2, 3, 4)
    waits = []
    for _ in range(4):
        drive.failed("permanent")
        before = drive.now
        drive.tell(ev.Diverted(ticket=drive.tickets[P]))
        while drive.state_machine.states[P].task is None:
            drive.pass_time(0.5)
        waits.append(drive.now - before)
    assert waits == [0.0, 1.0, 2.0, 4.0]
    drive.handled()
    drive.fetch(5, 6)
    drive.failed("permanent")
    assert of(ev.RunHandler, drive.tell(ev.Diverted(ticket=drive.tickets[P])))


def test_a_failed_put_stops_the_partition_and_is_tried_again():
    drive = ready(size=1)
    drive.fetch(0, 1)
    drive.failed("permanent")
    actions = drive.tell(ev.DivertFailed(ticket=drive.tickets[P], error="no brokers"))
    assert of(ev.PartitionStopped, actions)[0].reason == "no brokers"
    assert of(ev.PausePartition, actions)
    assert drive.state_machine.states[P].done == 0
    assert len(of(ev.Divert, drive.pass_time(1.0))) == 1
    actions = drive.tell(ev.Diverted(ticket=drive.tickets[P]))
    assert of(ev.PartitionResumed, actions)
    assert of(ev.ResumePartition, actions)
    assert ranges(actions) == [(1, 1)]


def test_nothing_is_handed_out_before_the_partition_is_prepared():
    drive = Drive(diverts=True, size=1)
    drive.assign()
    drive.tell(ev.PrepareFailed(ticket=drive.tickets[P], error="cannot read"))
    drive.fetch(0)
    assert drive.state_machine.states[P].stopped == "cannot read"
    assert len(of(ev.PreparePartition, drive.pass_time(1.0))) == 1
    actions = drive.tell(ev.PartitionPrepared(ticket=drive.tickets[P]))
    assert ranges(actions) == [(0, 0)]
    assert of(ev.RunHandler, actions)[0].attempt == 1


# Leaving.


def test_a_partition_that_leaves_finishes_what_runs_and_commits_it():
    drive = Drive(acknowledge=False)
    drive.assign(P, Q)
    drive.fetch(*range(6))
    drive.tell(ev.Committed(partition=P, position=CommittedPosition(offset=0, ends=(2, 5))))
    drive.tell(ev.Leaving(partitions=(P, ("other", 0))))
    drive.handled()
    drive.fetch(6, 7, 8)
    drive.tell(ev.CommitFailed(partition=P, error="rebalancing"))
    assert ranges(drive.log) == [(0, 2)]
    (last,) = drive.tell(ev.Revoked(partitions=(P,)))
    assert last == ev.CommitNow(positions=((P, CommittedPosition(offset=3, ends=(5,))),))
    assert list(drive.state_machine.states) == [Q]


def test_what_does_not_finish_in_time_is_cancelled_and_not_committed():
    drive = Drive()
    drive.assign()
    drive.fetch(0, 1, 2)
    drive.tell(ev.Leaving(partitions=(P,)))
    ticket = drive.tickets[P]
    assert drive.tell(ev.Revoked(partitions=(P,))) == [ev.Cancel(ticket=ticket)]
    assert drive.tell(ev.HandlerSucceeded(ticket=ticket)) == []


def test_retries_end_at_once_when_a_partition_leaves_or_all_stops():
    for end in (ev.Leaving(partitions=(P,)), ev.Stopping()):
        drive = Drive()
        drive.assign()
        drive.fetch(0, 1, 2)
        drive.failed()
        drive.tell(end)
        assert not drive.state_machine.busy()
        assert ranges(drive.pass_time(100)) == []


def test_a_lost_partition_commits_nothing():
    drive = Drive(acknowledge=False)
    drive.assign()
    drive.fetch(*range(6))
    drive.tell(ev.Committed(partition=P, position=CommittedPosition(offset=0, ends=(2, 5))))
    drive.handled()
    ticket = drive.tickets[P]
    assert drive.tell(ev.Lost(partitions=(P, Q))) == [ev.Cancel(ticket=ticket)]
    assert drive.tell(ev.Revoked(partitions=(P,))) == []


def test_an_answer_of_an_earlier_term_is_not_listened_to():
    drive = Drive()
    drive.assign()
    drive.fetch(0, 1, 2)
    old = drive.tickets[P]
    drive.tell(ev.Lost(partitions=(P,)))
    drive.assign()
    drive.fetch(0, 1, 2)
    assert drive.tell(ev.HandlerSucceeded(ticket=old)) == []
    assert drive.state_machine.states[P].done == 0


def test_stopping_pauses_everything_and_what_comes_later_begins_nothing():
    drive = Drive()
    drive.assign()
    assert of(ev.PausePartition, drive.tell(ev.Stopping()))
    drive.assign(Q)
    drive.fetch(0, 1, 2, partition=Q)
    assert ranges(drive.log) == []


# Back-pressure.


def test_full_partitions_are_left_alone_for_a_while_and_then_paused():
    drive = Drive()
    assert drive.state_machine.wants_records
    drive.assign()
    assert drive.state_machine.wants_records
    drive.fetch(*range(2 * MIN_BUFFER_RECORDS + 200))
    assert not drive.state_machine.wants_records
    assert drive.state_machine.wake_at(drive.now) == drive.now + PAUSE_AFTER_SECONDS
    assert of(ev.PausePartition, drive.pass_time(PAUSE_AFTER_SECONDS))
    assert drive.state_machine.wants_records
    while not of(ev.ResumePartition, drive.log):
        drive.handled()
    assert drive.state_machine.states[P].level == "low"


def test_overfull_partitions_are_paused_at_once():
    drive = Drive()
    drive.assign()
    assert of(ev.PausePartition, drive.fetch(*range(4 * MIN_BUFFER_RECORDS)))


def test_records_that_are_not_due_for_long_pause_their_partition():
    drive = Drive()
    drive.assign()
    assert of(ev.PausePartition, drive.fetch(*range(MIN_BUFFER_RECORDS), due_at=drive.now + 1000))
    assert drive.state_machine.wake_at(drive.now) == drive.now + 1000


def test_bytes_make_a_partition_full_too():
    drive = Drive(max_bytes=100, size=10_000)
    drive.assign()
    drive.fetch(*range(6), size=100)
    assert drive.state_machine.states[P].level == "full"
    drive.fetch(*range(6, 8), size=100)
    assert drive.state_machine.states[P].level == "over"


# Watching.


def test_a_handler_that_runs_too_long_is_found_once():
    drive = Drive(stuck_seconds=60)
    drive.assign(P, Q)
    drive.fetch(0, 1, 2)
    assert of(ev.HandlerStuck, drive.pass_time(59)) == []
    (stuck,) = of(ev.HandlerStuck, drive.pass_time(1))
    assert (stuck.ticket, stuck.seconds) == (drive.tickets[P], 60)
    assert of(ev.HandlerStuck, drive.pass_time(60)) == []
    assert drive.state_machine.states[P].stuck
    drive.handled()
    assert not drive.state_machine.states[P].stuck


def test_lag_counts_what_is_not_done():
    drive = Drive()
    drive.assign(offset=10)
    drive.tell(ev.EndOffsetRead(partition=P, end=25))
    assert drive.state_machine.states[P].lag == 15
    drive.fetch(10, 11, 12)
    drive.handled()
    assert drive.state_machine.states[P].lag == 12
    drive.assign(Q, offset=None)
    assert drive.state_machine.states[Q].lag == 0


def test_waiting_for_a_commit_or_a_slot_is_counted():
    drive = Drive(acknowledge=False)
    drive.assign()
    drive.fetch(0, 1, 2)
    drive.now += 5
    drive.tell(ev.Committed(partition=P, position=CommittedPosition(offset=0, ends=(2,))))
    assert drive.state_machine.waited_seconds == 5
    drive.tell(ev.Lost(partitions=(P,)))
    assert drive.state_machine.waited_seconds == 5


def test_nothing_to_wait_for():
    drive = Drive()
    assert drive.state_machine.wake_at(drive.now) == inf
    drive.assign()
    assert drive.state_machine.wake_at(drive.now) == inf


@pytest.mark.parametrize(("is_ours", "kept"), [(True, 3), (False, None)])
def test_the_leader_epoch_of_another_clients_commit_is_not_committed_as_ours(is_ours, kept):
    drive = Drive()
    position = CommittedPosition(offset=0, leader_epoch=3, is_ours=is_ours)
    drive.tell(ev.Assigned(partition=P, position=position))
    (commit,) = of(ev.Commit, drive.fetch(0, 1, 2))
    assert commit.position.ends
    assert commit.position.leader_epoch == kept


# Plans in text.


@given(
    st.integers(0, 2**62),
    st.lists(st.integers(0, 2**40), max_size=MAX_ENDS).map(sorted).map(dict.fromkeys).map(tuple),
    st.booleans(),
)
def test_a_plan_reads_back_and_fits_beside_an_offset(offset, steps, names_group):
    position = CommittedPosition(
        offset=offset, ends=tuple(offset + step for step in steps), names_group=names_group
    )
    text = write_plan(position)
    assert read_plan(offset, text) == position
    assert read_plan(offset, text).names_group is names_group
    assert len(text) < 4096


@pytest.mark.parametrize(
    "text", [None, "", "theirs", "oncehouse:", "oncehouse:1,x", "oncehouse:1,0", "oncehouse:" + "9" * 30]
)
def test_what_is_no_plan_means_none(text):
    assert read_plan(5, text) == CommittedPosition(offset=5)


def test_a_commit_of_ours_is_known_as_such_without_a_plan_too():
    assert read_plan(5, write_plan(CommittedPosition(offset=5))).is_ours
    assert not read_plan(5, "theirs").is_ours
    assert not read_plan(5, "").is_ours


def test_without_an_offset_there_is_no_plan():
    assert write_plan(CommittedPosition()) == ""
    assert read_plan(None, "oncehouse:1") == CommittedPosition()


# Records.


def test_records_are_messages_when_asked():
    found = Records(
        [MemoryRecord("t", 1, 7, b"k", b"v", (("h", b"1"),), 5), MemoryRecord("t", 1, 9, None, None)]
    )
    first = Message(
        topic="t", partition=1, offset=7, key=b"k", value=b"v", headers=(("h", b"1"),), timestamp_ms=5
    )
    assert found[0] == first
    assert [message.offset for message in found] == [7, 9]
    assert found[1].timestamp_ms is None
    assert found[1:].offsets() == [9]
    assert (found.keys(), found.values(), found.count_bytes()) == ([b"k", None], [b"v", None], 1)
    assert (Records([]).keys(), Records([]).values(), Records([]).offsets()) == ([], [], [])
    assert found.without(frozenset()) is found


def test_a_fetch_is_taken_apart_by_partition():
    mixed = [*records(0, 1).raw, *records(5, partition=1).raw, *records(2).raw]
    assert [(key, found.offsets()) for key, found in by_partition(mixed)] == [(P, [0, 1, 2]), (Q, [5])]
    mixed += records(0, topic="other").raw
    assert [key for key, _ in by_partition(mixed)] == [P, Q, ("other", 0)]


def test_errors_are_taken_out_of_a_fetch():
    class Told(MemoryRecord):
        def error(self):
            return "broken" if self.offset() else None

    good, bad = Told("events", 0, 0, None, None), Told("events", 0, 1, None, None)
    assert split_errors([]) == ([], [])
    assert split_errors([good]) == ([good], [])
    assert split_errors([good, bad]) == ([good], [bad])


# Pacing.


def follow(
    limits: BatchSizeLimits,
    *,
    call: float,
    record: float,
    arriving: int,
    rounds: int = 60,
    noise=lambda _: 1.0,
):
    """Sizes, seconds and lags of a handler of that cost, with so many records arriving a second."""
    batch_size, lag, seen = initial_batch_size(limits), 0.0, []
    for turn in range(rounds):
        lag += arriving * batch_size.wait_seconds if lag < batch_size.size else 0.0
        size = max(1, min(batch_size.size, int(lag)))
        seconds = (call + record * size) * noise(turn)
        lag = max(0.0, lag - size) + arriving * seconds
        seen.append((size, seconds, lag))
        batch_size = adapt_batch_size(
            batch_size, BatchMeasurement(records=size, seconds=seconds, lag=int(lag)), limits
        )
    return batch_size, seen


LIMITS = BatchSizeLimits(size=10_000, wait_seconds=1.0, target_seconds=1.0)


def test_the_size_follows_the_time_of_the_handler():
    batch_size, _ = follow(LIMITS, call=0.01, record=0.001, arriving=5000)
    assert 700 <= batch_size.size <= 2600
    batch_size, _ = follow(LIMITS, call=0.01, record=0.00001, arriving=50_000)
    assert batch_size.size == LIMITS.size


def test_an_expensive_call_does_not_starve_the_stream():
    batch_size, seen = follow(LIMITS, call=2.0, record=0.0005, arriving=1000, rounds=200)
    assert batch_size.size >= 8000
    assert max(lag for _, _, lag in seen[100:]) < 30_000
    assert batch_size.wait_seconds > LIMITS.wait_seconds


@given(st.floats(0, 0.5), st.floats(1e-5, 1e-2), st.randoms(use_true_random=False))
def test_the_size_comes_to_rest(call, record, rng):
    batch_size, _ = follow(
        LIMITS, call=call, record=record, arriving=10**6, rounds=60, noise=lambda _: rng.uniform(0.95, 1.05)
    )
    sizes = []
    for _ in range(40):
        seconds = (call + record * batch_size.size) * rng.uniform(0.95, 1.05)
        batch_size = adapt_batch_size(
            batch_size, BatchMeasurement(records=batch_size.size, seconds=seconds, lag=10**6), LIMITS
        )
        sizes.append(batch_size.size)
    ups = [after > before for before, after in pairwise(sizes) if after != before]
    assert sum(first != second for first, second in pairwise(ups)) <= 4
    assert max(sizes) <= 3 * min(sizes)
    assert max(sizes) <= LIMITS.size


def test_the_cost_of_calls_and_records_is_told_apart():
    batch_size = BatchSize(size=1, wait_seconds=1.0)
    for size in (100, 1000, 400, 700):
        batch_size = adapt_batch_size(
            batch_size, BatchMeasurement(records=size, seconds=0.5 + 0.001 * size, lag=0), LIMITS
        )
    assert estimate_cost(batch_size).call_seconds == pytest.approx(0.5)
    assert estimate_cost(batch_size).record_seconds == pytest.approx(0.001)
    free = adapt_batch_size(
        initial_batch_size(LIMITS), BatchMeasurement(records=10, seconds=0.0, lag=0), LIMITS
    )
    assert free.size == LIMITS.size


def test_an_adaptive_partition_changes_its_size():
    drive = Drive(size=100, adaptive=True, target_seconds=1.0)
    drive.assign()
    for start in range(0, 1000, 100):
        drive.fetch(*range(start, start + 100))
    while drive.state_machine.states[P].task is not None:
        drive.now += 10.0
        drive.handled()
    assert drive.state_machine.states[P].batch_size.size < 100


def test_a_subscription_knows_which_topics_are_its_retry_topics():
    alone = Subscription(rules=HandlerRules(topic="events"), handler=print)
    assert alone.retry_topics == ()
    assert alone.source_of("events") is None
    assert alone.source_of("events.retry.1") == "events"


def test_a_record_that_did_not_come_from_kafka_has_no_leader_epoch():
    assert records(7).last_leader_epoch is None
    assert split_errors(records(7).raw) == (records(7).raw, [])
