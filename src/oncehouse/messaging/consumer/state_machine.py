"""The consumer's decisions, without any I/O: events and the time go in, actions come out.

`handle` must be called by one thread at a time, and its actions carried out in order before the next call. Each
partition has a state of its own (`partition_state`); this module has what they share: slots, backpressure, rebalances
and stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import assert_never

from oncehouse.messaging.consumer.events import (
    Action,
    Assigned,
    Cancel,
    CommitFailed,
    CommitNow,
    Committed,
    Diverted,
    DivertedUntried,
    DivertFailed,
    EndOffsetRead,
    Event,
    HandlerFailed,
    HandlerSucceeded,
    Leaving,
    Lost,
    PartitionPrepared,
    PausePartition,
    PrepareFailed,
    RecordsFetched,
    ResumePartition,
    Revoked,
    Stopping,
    Ticked,
    Ticket,
)
from oncehouse.messaging.consumer.handler_rules import HandlerRules
from oncehouse.messaging.consumer.partition_state import PartitionState
from oncehouse.messaging.failure_policy import Partition

PAUSE_AFTER_SECONDS = 1.0
"""How long partitions may stay full before they are paused: a pause discards the client's prefetched records."""


class StateMachine:
    def __init__(self, rules: Mapping[str, HandlerRules], *, jitter: Callable[[], float]) -> None:
        """`rules` by topic, including retry topics; `chance` returns random numbers from 0 to 1 for the back-off."""
        self._rules = rules
        self._jitter = jitter
        self._states: dict[Partition, PartitionState] = {}
        self._terms = 0
        self._stopping = False
        self._waited_before = 0.0

    # For the runner.

    @property
    def states(self) -> Mapping[Partition, PartitionState]:
        return self._states

    @property
    def wants_records(self) -> bool:
        """Whether fetching records is useful now. If not, the runner waits for a handler."""
        return not self._states or any(
            state.paused or state.level == "low" for state in self._states.values()
        )

    @property
    def waited_seconds(self) -> float:
        return self._waited_before + sum(state.waited_seconds for state in self._states.values())

    def busy(self, partitions: Collection[Partition] | None = None) -> bool:
        """Whether a task is under way in these partitions, or in any."""
        keys = self._states if partitions is None else partitions
        return any(key in self._states and self._states[key].task is not None for key in keys)

    def is_settled(self) -> bool:
        """Whether no task is under way and all handled records are committed."""
        return not self.busy() and all(state.last_commit() is None for state in self._states.values())

    def wake_at(self, now: float) -> float:
        """When `Ticked` is due at the latest."""
        times = [state.wake_at(now) for state in self._states.values()]
        times += [
            state.full_since + PAUSE_AFTER_SECONDS
            for state in self._states.values()
            if not state.paused and state.full_since < inf
        ]
        return min(times, default=inf)

    # Events.

    def handle(self, event: Event, now: float) -> list[Action]:
        match event:
            case RecordsFetched() | EndOffsetRead() | Committed() | CommitFailed():
                state = self._states.get(event.partition)
                if state is None:
                    return []
                actions = _apply_to_partition(state, event, now)
                touched = [state]
            case (
                PartitionPrepared()
                | PrepareFailed()
                | HandlerSucceeded()
                | HandlerFailed()
                | DivertedUntried()
                | Diverted()
                | DivertFailed()
            ):
                state = self._state_of(event.ticket)
                if state is None:
                    return []
                actions = _apply_to_work(state, event, now)
                touched = list(self._states.values())
            case _:
                actions = self._apply_to_all(event, now)
                touched = list(self._states.values())
        self._advance(touched, now, actions)
        return actions

    def _apply_to_all(
        self, event: Assigned | Leaving | Stopping | Revoked | Lost | Ticked, now: float
    ) -> list[Action]:
        actions: list[Action] = []
        match event:
            case Assigned():
                self._assign(event)
            case Leaving(partitions=partitions):
                self._leave(partitions)
            case Stopping():
                self._stopping = True
                self._leave(self._states)
            case Revoked(partitions=partitions):
                actions = self._revoke(partitions)
            case Lost(partitions=partitions):
                actions = self._forget(partitions)
            case Ticked():
                found = [state.find_stuck(now) for state in self._states.values()]
                actions = [stuck for stuck in found if stuck is not None]
            case _:  # pragma: no cover
                assert_never(event)
        return actions

    def _state_of(self, ticket: Ticket) -> PartitionState | None:
        state = self._states.get(ticket.partition)
        return state if state is not None and state.task == ticket else None

    def _assign(self, event: Assigned) -> None:
        self._terms += 1
        self._states[event.partition] = PartitionState(
            key=event.partition,
            rules=self._rules[event.partition[0]],
            term=self._terms,
            start=event.position,
            jitter=self._jitter,
            leaving=self._stopping,
        )

    def _leave(self, partitions: Collection[Partition]) -> None:
        for key in partitions:
            if key in self._states:
                self._states[key].leaving = True

    def _revoke(self, partitions: Collection[Partition]) -> list[Action]:
        positions = [
            (key, position)
            for key in partitions
            if key in self._states and (position := self._states[key].last_commit()) is not None
        ]
        last: list[Action] = [CommitNow(positions=tuple(positions))] if positions else []
        return last + self._forget(partitions)

    def _forget(self, partitions: Collection[Partition]) -> list[Action]:
        actions: list[Action] = []
        for key in partitions:
            state = self._states.pop(key, None)
            if state is not None:
                self._waited_before += state.waited_seconds
                if state.task is not None:
                    actions.append(Cancel(ticket=state.task))
        return actions

    def _advance(self, states: list[PartitionState], now: float, actions: list[Action]) -> None:
        for state in states:
            state.cut(now)
            commit = state.commit(now)
            if commit is not None:
                actions.append(commit)
        self._begin_work(states, now, actions)
        for state in states:
            balanced = _apply_backpressure(state, now)
            if balanced is not None:
                actions.append(balanced)

    def _begin_work(self, states: list[PartitionState], now: float, actions: list[Action]) -> None:
        under_way: dict[str, int] = {}
        for state in self._states.values():
            under_way[state.rules.topic] = under_way.get(state.rules.topic, 0) + (state.task is not None)
        for state in states:
            if under_way[state.rules.topic] >= state.rules.concurrency:
                continue
            begun = state.begin(now)
            if begun is not None:
                actions.append(begun)
                under_way[state.rules.topic] += 1
                # To the end of the queue, so that all partitions get their turn at the slots.
                self._states[state.key] = self._states.pop(state.key)


def _apply_backpressure(state: PartitionState, now: float) -> PausePartition | ResumePartition | None:
    level = "over" if state.leaving else state.level
    state.full_since = min(state.full_since, now) if level == "full" else inf
    pause_due = now >= state.full_since + PAUSE_AFTER_SECONDS
    if not state.paused and (level == "over" or pause_due):
        state.paused = True
        return PausePartition(partition=state.key)
    if state.paused and level == "low":
        state.paused = False
        return ResumePartition(partition=state.key)
    return None


def _apply_to_partition(
    state: PartitionState, event: RecordsFetched | EndOffsetRead | Committed | CommitFailed, now: float
) -> list[Action]:
    match event:
        case RecordsFetched(records=records, due_at=due_at):
            state.take(records, due_at, now)
        case EndOffsetRead(end=end):
            state.end = end
        case Committed(position=position):
            return state.end_commit(position)
        case CommitFailed():
            state.end_commit_failed(now)
        case _:  # pragma: no cover
            assert_never(event)
    return []


def _apply_to_work(
    state: PartitionState,
    event: PartitionPrepared
    | PrepareFailed
    | HandlerSucceeded
    | HandlerFailed
    | DivertedUntried
    | Diverted
    | DivertFailed,
    now: float,
) -> list[Action]:
    match event:
        case PartitionPrepared():
            return state.end_prepare()
        case HandlerSucceeded():
            return state.end_handled(now)
        case HandlerFailed(error=error, kind=kind):
            return state.end_failed(error, kind, now)
        case DivertedUntried(offsets=offsets):
            state.skip(offsets)
            return []
        case Diverted():
            return state.end_divert(now)
        case PrepareFailed(error=error) | DivertFailed(error=error):
            return state.end_divert_failed(error, now)
        case _:  # pragma: no cover
            assert_never(event)
