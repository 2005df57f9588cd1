"""Random lives of a group of consumers over the broker in memory, and seeded defects that the oracle has to see."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumer_simulation import POISON, TOPIC, ConsumerSimulation
from oncehouse.messaging.consumer import events as ev
from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.consumer.partition_state import PartitionState
from oncehouse.messaging.consumer.runner import ConsumerRunner

SEEDS = range(40)


class Lives(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 3), eager=st.booleans(), size=st.integers(1, 5))
    def begin(self, partitions, eager, size):
        self.simulation = ConsumerSimulation(partitions=partitions, eager=eager, size=size)
        self.simulation.join()

    @rule(partition=st.integers(0, 2), count=st.integers(1, 8), poison=st.booleans())
    def send(self, partition, count, poison):
        for number in range(count):
            value = POISON if poison and number == count // 2 else b"%d" % number
            self.simulation.broker.send(TOPIC, value, partition=partition % self.simulation.partitions)

    @precondition(lambda self: self.simulation.members)
    @rule(which=st.integers(0, 3))
    def step(self, which):
        self.simulation.members[which % len(self.simulation.members)].runner.step()

    @precondition(lambda self: self.simulation.members)
    @rule(which=st.integers(0, 3), count=st.integers(1, 3))
    def work(self, which, count):
        for _ in range(count):
            self.simulation.members[which % len(self.simulation.members)].executor.run_one()

    @rule(seconds=st.floats(0.1, 3.0))
    def wait(self, seconds):
        self.simulation.clock.advance(seconds)

    @precondition(lambda self: len(self.simulation.members) < 3)
    @rule()
    def join(self):
        self.simulation.join()

    @precondition(lambda self: self.simulation.members)
    @rule(which=st.integers(0, 3))
    def crash(self, which):
        self.simulation.crash(which % len(self.simulation.members))

    @precondition(lambda self: self.simulation.members)
    @rule(which=st.integers(0, 3))
    def stop(self, which):
        self.simulation.stop(which % len(self.simulation.members))

    @rule()
    def throw_out(self):
        self.simulation.throw_out()

    @rule(handler=st.integers(0, 2), policy=st.integers(0, 2), commits=st.integers(0, 2))
    def break_things(self, handler, policy, commits):
        self.simulation.transient_failures = handler
        self.simulation.policy.failing = policy
        # A refused last commit is a repeat that nobody promised to prevent.
        if commits:
            self.simulation.broker.refuse_commits(commits)
            self.simulation.crashes += 1

    @invariant()
    def what_was_handled_is_right(self):
        if hasattr(self, "simulation"):
            self.simulation.check_order_and_repeats()

    def teardown(self):
        if hasattr(self, "simulation"):
            self.simulation.come_to_rest()
            self.simulation.check_all_done()


Lives.TestCase.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLives = Lives.TestCase


def remaining(seed: int) -> None:
    """A life with crashes, losses, rebalances and poison, the same for the same seed."""
    die = random.Random(seed)
    simulation = ConsumerSimulation(partitions=2, eager=die.random() < 0.5)
    simulation.join()
    for _ in range(150):
        pick = die.random()
        if pick < 0.2:
            for number in range(die.randint(1, 6)):
                simulation.broker.send(TOPIC, POISON if die.random() < 0.05 else b"%d" % number)
        elif pick < 0.25 and len(simulation.members) < 3:
            simulation.join()
        elif pick < 0.28 and simulation.members:
            simulation.crash(die.randrange(len(simulation.members)))
        elif pick < 0.30 and simulation.members:
            simulation.stop(die.randrange(len(simulation.members)))
        elif pick < 0.32:
            simulation.throw_out()
        elif pick < 0.4:
            simulation.clock.advance(die.random())
        elif simulation.members:
            member = die.choice(simulation.members)
            member.runner.step() if die.random() < 0.6 else member.executor.run_one()
        simulation.check_order_and_repeats()
    simulation.come_to_rest()
    simulation.check_all_done()


def test_lives_of_fixed_seeds_end_well():
    for seed in SEEDS:
        remaining(seed)


def commit_before_success(patch: pytest.MonkeyPatch) -> None:
    begin = PartitionState.begin

    def hasty(self, now):
        begun = begin(self, now)
        if isinstance(begun, ev.RunHandler):
            self.done = begun.records.last_offset + 1
        return begun

    patch.setattr(PartitionState, "begin", hasty)


def commit_one_too_many(patch: pytest.MonkeyPatch) -> None:
    commit = PartitionState.commit

    def greedy(self, now):
        found = commit(self, now)
        if found is None or found.position.offset is None:
            return found
        position = CommittedPosition(offset=found.position.offset + 1, ends=found.position.ends)
        self._in_flight = position
        return ev.Commit(partition=found.partition, position=position)

    patch.setattr(PartitionState, "commit", greedy)


def leave_without_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionState, "last_commit", lambda self: None)


def hand_out_before_the_plan_is_in_kafka(patch: pytest.MonkeyPatch) -> None:
    begin = PartitionState.begin

    def hasty(self, now):
        if self.closed:
            self._acked = CommittedPosition(offset=self._acked.offset, ends=(self.closed[0].end,))
        return begin(self, now)

    patch.setattr(PartitionState, "begin", hasty)


def forget_the_plan_of_others(patch: pytest.MonkeyPatch) -> None:
    start = PartitionState.__post_init__

    def deaf(self):
        self.start = CommittedPosition(offset=self.start.offset)
        start(self)

    patch.setattr(PartitionState, "__post_init__", deaf)


def listen_to_late_answers(patch: pytest.MonkeyPatch) -> None:
    from oncehouse.messaging.consumer.state_machine import StateMachine

    def careless(self, ticket):
        state = self._states.get(ticket.partition)
        return state if state is not None and state.task is not None else None

    patch.setattr(StateMachine, "_state_of", careless)


def keep_working_while_leaving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerRunner, "on_revoked", lambda self, partitions: None)


def bisect_right_to_left(patch: pytest.MonkeyPatch) -> None:
    split = PartitionState._bisect

    def turned(self, work, now):
        split(self, work, now)
        first = self.closed.popleft()
        self.closed.insert(1, first)

    patch.setattr(PartitionState, "_bisect", turned)


@pytest.mark.parametrize(
    "defect",
    [
        commit_before_success,
        commit_one_too_many,
        leave_without_commit,
        hand_out_before_the_plan_is_in_kafka,
        forget_the_plan_of_others,
        listen_to_late_answers,
        keep_working_while_leaving,
        bisect_right_to_left,
    ],
)
def test_a_seeded_defect_is_seen(defect, monkeypatch):
    defect(monkeypatch)
    caught = 0
    for seed in SEEDS:
        try:
            remaining(seed)
        except (AssertionError, KeyError, IndexError):
            caught += 1
            break
    assert caught, f"{defect.__name__} went unseen"
