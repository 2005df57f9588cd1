"""The consumer's main loop: polls, feeds events to the state machine and carries out its actions.

One thread polls from start to end, whatever handlers do, and only this thread uses the client. Handlers report from
their own threads; the state machine is called under a lock, and its actions for the client wait for the next poll.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, RLock
from typing import Any, assert_never

from oncehouse.errors import OncehouseError, TransientError
from oncehouse.messaging.clock import Clock
from oncehouse.messaging.consumer import events as ev
from oncehouse.messaging.consumer.client import BrokerClient
from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.consumer.handler_executor import HandlerExecutor
from oncehouse.messaging.consumer.handler_rules import Subscription
from oncehouse.messaging.consumer.health import Health, HealthFile, PartitionHealth
from oncehouse.messaging.consumer.log_order import LogOrder
from oncehouse.messaging.consumer.metrics import Metrics
from oncehouse.messaging.consumer.partition_tasks import Executor, InlineExecutor, PartitionTasks
from oncehouse.messaging.consumer.records import Records, by_partition
from oncehouse.messaging.consumer.state_machine import StateMachine
from oncehouse.messaging.consumer.time_report import TimeReport, TimeSums
from oncehouse.messaging.consumer.workers import Workers
from oncehouse.messaging.failure_policy import Partition, RetryBroker

_IDLE_POLL_SECONDS = 0.25
_BUSY_POLL_SECONDS = 0.01
_HOUSEKEEPING_SECONDS = 1.0
_LAST_COMMIT_SECONDS = 5.0
_BETWEEN_COMMITS_SECONDS = 0.1
_BETWEEN_GAPS_SECONDS = 60.0
_MOST_RECORDS, _LEAST_RECORDS = 10_000, 1_000
_log = logging.getLogger("oncehouse.consumer")

ClientAction = ev.Commit | ev.CommitNow | ev.PausePartition | ev.ResumePartition


@dataclass(frozen=True, kw_only=True)
class ShutdownLimits:
    drain_seconds: float = 30.0
    """How long a stop waits for handlers."""
    revoke_seconds: float = 10.0
    """How long a rebalance waits for handlers of partitions that leave."""


class ConsumerRunner:
    def __init__(
        self,
        *,
        group: str,
        client: BrokerClient,
        subscriptions: Sequence[Subscription],
        workers: Mapping[str, Workers],
        executor: Executor,
        clock: Clock,
        metrics: Metrics,
        shutdown_limits: ShutdownLimits,
        health_file: HealthFile | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`workers` by the source topic of a subscription."""
        self._group = group
        self._client = client
        self._subscriptions = subscriptions
        self._clock = clock
        self._metrics = metrics
        self._shutdown_limits = shutdown_limits
        self._health_file = health_file
        self._executor = executor
        self._changed = Condition(RLock())
        self._of_topic = {
            topic: subscription
            for subscription in subscriptions
            for topic in (subscription.rules.topic, *subscription.retry_topics)
        }
        self._retry_topics = {topic for subscription in subscriptions for topic in subscription.retry_topics}
        self.state_machine = StateMachine(
            {topic: subscription.rules for topic, subscription in self._of_topic.items()}, jitter=jitter
        )
        self.times = TimeSums()
        self._handler_executor = HandlerExecutor(
            group=self._group,
            feed=self.feed,
            partition_tasks=PartitionTasks(executor),
            workers=workers,
            subscriptions=self._of_topic,
            clock=clock,
            metrics=metrics,
            times=self.times,
        )
        largest = max(subscription.rules.size for subscription in subscriptions)
        self._fetch_count = min(max(largest, _LEAST_RECORDS), _MOST_RECORDS)
        self._client_actions: deque[ClientAction] = deque()
        self._was_idle = False
        self.activity = 0
        """Counts events other than the passing of time."""
        self._stop = False
        self._state = "running"
        self._housekeeping_at = -1e9
        self._started_at = clock.monotonic()
        self._next_offsets: dict[Partition, int] = {}
        self._checked_at: dict[Partition, float] = {}
        self._log_order = LogOrder(self._group)
        self._retry_broker: RetryBroker | None = None

    # Start and end.

    def run(self) -> None:
        """From joining the group to leaving it; ends after `stop`, or with an error after which it cannot continue."""
        self.open()
        try:
            while not self._stop:
                self.step()
        finally:
            self.finish()

    def stop(self) -> None:
        """Safe from any thread and from signal handlers, which may interrupt the holder of the lock."""
        self._stop = True

    @property
    def stop_requested(self) -> bool:
        return self._stop

    def open(self) -> None:
        policies = [
            (subscription.rules.topic, subscription.policy)
            for subscription in self._subscriptions
            if subscription.policy is not None
        ]
        if policies:
            self._retry_broker = self._client.open_retry_broker()
            for topic, policy in policies:
                policy.open(topic, self._retry_broker)
        self._client.open(list(self._of_topic), beginning=self._retry_topics, listener=self)

    def finish(self) -> None:
        self._state = "stopping"
        try:
            self._drain()
            self.feed(ev.Revoked(partitions=tuple(self.state_machine.states)))
            self._do_client_actions()
        finally:
            self._client.close()
            self._handler_executor.close()
            self._executor.close()
            if self._retry_broker is not None:
                self._retry_broker.close()
            self._state = "stopped"
            self._write_health()

    def _drain(self) -> None:
        self.feed(ev.Stopping())
        begun = self._clock.monotonic()
        try:
            # Polling continues, so that a long drain does not lose the partitions, and commits that a rebalance
            # refuses are retried.
            while self._is_draining(self._clock.monotonic() - begun):
                before = self.activity
                self.step()
                # Without threads the tasks must be run here.
                if (
                    isinstance(self._executor, InlineExecutor)
                    and not self._executor.run_one()
                    and self.activity == before
                ):
                    break
        except OncehouseError as error:
            _log.error("group %s: %s", self._group, error)

    def _is_draining(self, seconds: float) -> bool:
        if self.state_machine.busy():
            return seconds < self._shutdown_limits.drain_seconds
        return (
            not self.state_machine.is_settled()
            and seconds < self._shutdown_limits.drain_seconds + _LAST_COMMIT_SECONDS
        )

    # One iteration.

    def step(self) -> None:
        self.feed(ev.Ticked())
        self._do_client_actions()
        self._accept_records(self._poll())
        self._do_client_actions()
        self._run_housekeeping()

    def _poll(self) -> list[Any]:
        with self._changed:
            now = self._clock.monotonic()
            busy = self.state_machine.busy() or any(
                state.awaits_commit for state in self.state_machine.states.values()
            )
            timeout = max(0.0, min(self.state_machine.wake_at(now) - now, _IDLE_POLL_SECONDS))
            if not self.state_machine.wants_records:
                # Records stay in the client; the poll only serves its callbacks.
                if not isinstance(self._executor, InlineExecutor):
                    self._changed.wait(min(timeout, _BUSY_POLL_SECONDS))
                count, timeout = 1, 0.0
            elif busy:
                count, timeout = self._fetch_count, min(timeout, _BUSY_POLL_SECONDS)
            else:
                count = 1 if self._was_idle else self._fetch_count
        started = time.monotonic()
        raw = self._client.consume(count, timeout)
        if count == 1 and raw and self._was_idle:
            raw += self._client.consume(self._fetch_count, 0)
        self._was_idle = not raw
        seconds = time.monotonic() - started
        self.times.add(poll=seconds)
        self._metrics.timing("poll.seconds", seconds)
        return raw

    def _accept_records(self, raw: list[Any]) -> None:
        if not raw:
            return
        self._metrics.increment("records.fetched", len(raw))
        for partition, records in by_partition(raw):
            self._check_for_gap(partition, records)
            self._log_order.take(partition, records)
            if partition[0] in self._retry_topics:
                self._accept_one_by_one(partition, records)
            else:
                self.feed(ev.RecordsFetched(partition=partition, records=records))

    def _accept_one_by_one(self, partition: Partition, records: Records) -> None:
        """Each record of a retry topic has its own due time."""
        policy = self._of_topic[partition[0]].policy
        for place in range(len(records)):
            due_at = policy.due_at(records[place]) if policy is not None else None
            in_seconds = 0.0 if due_at is None else due_at - self._clock.now()
            self.feed(
                ev.RecordsFetched(
                    partition=partition,
                    records=records[place : place + 1],
                    due_at=self._clock.monotonic() + in_seconds,
                )
            )

    def _check_for_gap(self, partition: Partition, records: Records) -> None:
        expected = self._next_offsets.get(partition)
        self._next_offsets[partition] = records.last_offset + 1
        if expected is None or records.first_offset <= expected or not self._may_ask(partition):
            return
        if (self._client.first_of(partition) or 0) > expected:
            gone = records.first_offset - expected
            self._metrics.increment("records.gone", gone, topic=partition[0], partition=partition[1])
            _log.error(
                "group %s: %s/%s was to go on at offset %s, but Kafka has deleted all before %s: %s offsets were never "
                "handled; look at the topic's retention",
                self._group, *partition, expected, records.first_offset, gone,
            )  # fmt: skip

    def _may_ask(self, partition: Partition) -> bool:
        """Transactions and compaction leave gaps, too: do not ask the brokers about each of them."""
        now = self._clock.monotonic()
        checked_at = self._checked_at.get(partition)
        if checked_at is not None and now < checked_at + _BETWEEN_GAPS_SECONDS:
            return False
        self._checked_at[partition] = now
        return True

    def feed(self, event: ev.Event) -> None:
        with self._changed:
            self.activity += not isinstance(event, ev.Ticked | ev.EndOffsetRead)
            for action in self.state_machine.handle(event, self._clock.monotonic()):
                self._do(action)
            self._changed.notify_all()

    def _do(self, action: ev.Action) -> None:
        match action:
            case ev.Commit() | ev.CommitNow() | ev.PausePartition() | ev.ResumePartition():
                self._client_actions.append(action)
            case ev.PreparePartition() | ev.RunHandler() | ev.Divert() | ev.NotifyCommitted() | ev.Cancel():
                self._handler_executor.do(action)
            case (
                ev.RetryAt()
                | ev.Bisected()
                | ev.PartitionStopped()
                | ev.PartitionResumed()
                | ev.HandlerStuck()
            ):
                self._log_action(action)
            case _:  # pragma: no cover
                assert_never(action)

    def _do_client_actions(self) -> None:
        while self._client_actions:
            action = self._client_actions.popleft()
            match action:
                case ev.CommitNow(positions=positions):
                    self._commit_now(dict(positions))
                case _ if action.partition not in self.state_machine.states:
                    pass
                case ev.Commit(partition=partition, position=position):
                    self._client.commit(partition, position)
                case ev.PausePartition(partition=partition):
                    self._client.pause(partition)
                case ev.ResumePartition(partition=partition):
                    self._client.resume(partition)
                case _:  # pragma: no cover
                    assert_never(action)

    def _commit_now(self, positions: Mapping[Partition, CommittedPosition]) -> None:
        deadline = self._clock.monotonic() + _LAST_COMMIT_SECONDS
        while True:
            try:
                self._client.commit_now(positions)
                self._metrics.increment("commits.done", len(positions))
            except TransientError as error:
                self._metrics.increment("commits.failed", len(positions))
                # A rebalance refuses commits only for a moment.
                if self._clock.monotonic() < deadline and not isinstance(self._executor, InlineExecutor):
                    time.sleep(_BETWEEN_COMMITS_SECONDS)
                    continue
                where = ", ".join(f"{topic}/{partition}" for topic, partition in positions)
                message = "group %s: the last commit of %s failed: %s; their last batches will come again"
                _log.error(message, self._group, where, error)
            return

    # Callbacks of the client.

    def on_assigned(self, positions: Mapping[Partition, CommittedPosition]) -> None:
        self._metrics.increment("partitions.assigned", len(positions))
        for partition, position in positions.items():
            self._checked_at.pop(partition, None)
            self._log_order.begin(partition, position)
            if position.offset is None:
                self._next_offsets.pop(partition, None)
            else:
                self._next_offsets[partition] = position.offset
            self.feed(ev.Assigned(partition=partition, position=position))

    def on_revoked(self, partitions: Collection[Partition]) -> None:
        self._metrics.increment("partitions.revoked", len(partitions))
        leaving = tuple(partitions)
        self.feed(ev.Leaving(partitions=leaving))
        deadline = self._clock.monotonic() + self._shutdown_limits.revoke_seconds
        with self._changed:
            while self.state_machine.busy(leaving) and self._clock.monotonic() < deadline:
                if isinstance(self._executor, InlineExecutor):
                    if not self._executor.run_one():
                        break
                else:
                    self._changed.wait(deadline - self._clock.monotonic())
        self.feed(ev.Revoked(partitions=leaving))
        self._do_client_actions()
        self._handler_executor.forget(leaving)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        self._metrics.increment("partitions.lost", len(partitions))
        _log.warning(
            "group %s: lost %s partitions; others may have them already", self._group, len(partitions)
        )
        with self._changed:
            self.feed(ev.Lost(partitions=tuple(partitions)))
            # Pending actions belong to the lost assignment: if the partition is reassigned at once, an old commit
            # would move it back, and an old pause would never end.
            kept = [
                one
                for one in self._client_actions
                if isinstance(one, ev.CommitNow) or one.partition not in partitions
            ]
            self._client_actions = deque(kept)
        self._handler_executor.forget(partitions)

    def on_committed(self, partition: Partition, position: CommittedPosition) -> None:
        self._metrics.increment("commits.done")
        self.feed(ev.Committed(partition=partition, position=position))

    def on_commit_failed(self, partition: Partition, error: str) -> None:
        self._metrics.increment("commits.failed")
        _log.info("group %s: %s/%s: a commit failed: %s; tried again", self._group, *partition, error)
        self.feed(ev.CommitFailed(partition=partition, error=error))

    # Logs, metrics and health.

    def _log_action(
        self, action: ev.RetryAt | ev.Bisected | ev.PartitionStopped | ev.PartitionResumed | ev.HandlerStuck
    ) -> None:
        topic, partition = (
            action.partition
            if isinstance(action, ev.PartitionStopped | ev.PartitionResumed)
            else action.ticket.partition
        )
        match action:
            case ev.RetryAt(at=at, failures=failures, error=error):
                wait = max(0.0, at - self._clock.monotonic())
                self.times.add(backoff=wait)
                _log.warning(
                    "%s/%s: attempt %s failed: %s; next in %.1f s", topic, partition, failures, error, wait
                )
            case ev.Bisected(size=size, error=error):
                self._metrics.increment("batches.bisected", topic=topic, partition=partition)
                _log.warning("%s/%s: %s records fail together: %s; bisecting", topic, partition, size, error)
            case ev.PartitionStopped(reason=reason):
                self._metrics.increment("partitions.stopped", topic=topic, partition=partition)
                _log.error("%s/%s stands still: %s; it is tried again", topic, partition, reason)
            case ev.PartitionResumed():
                _log.warning("%s/%s goes on", topic, partition)
            case ev.HandlerStuck(seconds=seconds):
                self._metrics.increment("handlers.stuck", topic=topic, partition=partition)
                _log.error(
                    "%s/%s: its handler has been running for %.0f s; is it stuck?", topic, partition, seconds
                )
            case _:  # pragma: no cover
                assert_never(action)

    def _run_housekeeping(self) -> None:
        now = self._clock.monotonic()
        if now < self._housekeeping_at + _HOUSEKEEPING_SECONDS:
            return
        self._housekeeping_at = now
        for partition, state in list(self.state_machine.states.items()):
            end = self._client.end_of(partition)
            if end is not None:
                self.feed(ev.EndOffsetRead(partition=partition, end=end))
            tags: dict[str, str | int] = {"topic": partition[0], "partition": partition[1]}
            self._metrics.gauge("lag", state.lag, **tags)
            self._metrics.gauge("batch.size", state.batch_size.size, **tags)
        with self._changed:
            running = sum(state.task is not None for state in self.state_machine.states.values())
        self._metrics.gauge("handlers.running", running)
        self._write_health()

    def _write_health(self) -> None:
        if self._health_file is not None:
            try:
                self._health_file.write(self.health())
            except OSError as error:
                _log.error("the health file cannot be written: %s", error)

    def health(self) -> Health:
        with self._changed:
            now = self._clock.monotonic()
            partitions = tuple(
                PartitionHealth(
                    topic=topic,
                    partition=partition,
                    done=state.done,
                    lag=state.lag,
                    running_seconds=None if state.task is None else round(now - state.task_since, 3),
                    stuck=state.stuck,
                    stopped=state.stopped,
                )
                for (topic, partition), state in sorted(self.state_machine.states.items())
            )
        return Health(
            healthy=not any(partition.stuck for partition in partitions),
            state=self._state,
            group=self._group,
            process=os.getpid(),
            written_at=self._clock.now(),
            partitions=partitions,
        )

    def report(self) -> TimeReport:
        with self._changed:
            wait = self.state_machine.waited_seconds
        return self.times.report(
            running_seconds=self._clock.monotonic() - self._started_at, wait_seconds=wait
        )
