"""Carries out the actions of the state machine that do not concern the client: handlers and the failure policy.

Results return as events with the ticket of their task; so do errors of a handler or a failure policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock
from typing import assert_never

from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.clock import Clock
from oncehouse.messaging.consumer import events as ev
from oncehouse.messaging.consumer.batch import Batch
from oncehouse.messaging.consumer.handler_rules import Subscription
from oncehouse.messaging.consumer.metrics import Metrics
from oncehouse.messaging.consumer.partition_tasks import PartitionTasks
from oncehouse.messaging.consumer.records import Records
from oncehouse.messaging.consumer.time_report import TimeSums
from oncehouse.messaging.consumer.workers import CancelFlag, HandlerJob, Workers
from oncehouse.messaging.failure_policy import FailedMessage, FailurePolicy, Partition
from oncehouse.messaging.message import Message

_log = logging.getLogger("oncehouse.consumer")


class HandlerExecutor:
    def __init__(
        self,
        *,
        group: str,
        feed: Callable[[ev.Event], None],
        partition_tasks: PartitionTasks,
        workers: Mapping[str, Workers],
        subscriptions: Mapping[str, Subscription],
        clock: Clock,
        metrics: Metrics,
        times: TimeSums,
    ) -> None:
        self._group = group
        self._feed = feed
        self._partition_tasks = partition_tasks
        self._workers = workers
        self._subscriptions = subscriptions
        self._clock = clock
        self._metrics = metrics
        self._times = times
        self._lock = Lock()
        self._jobs: dict[ev.Ticket, HandlerJob | None] = {}
        """Current tasks; None until the handler begins."""

    def do(
        self, action: ev.PreparePartition | ev.RunHandler | ev.Divert | ev.NotifyCommitted | ev.Cancel
    ) -> None:
        match action:
            case ev.Cancel(ticket=ticket):
                self._cancel(ticket)
            case ev.NotifyCommitted(partition=partition, records=records):
                self._submit(partition, lambda policy: policy.committed(records))
            case ev.PreparePartition(ticket=ticket):
                self._submit(ticket.partition, lambda policy: self._prepare(policy, ticket))
            case ev.Divert(ticket=ticket):
                self._submit(ticket.partition, lambda policy: self._divert_poison(policy, action))
            case ev.RunHandler(ticket=ticket):
                with self._lock:
                    self._jobs[ticket] = None
                if self._subscriptions[ticket.partition[0]].policy is None:
                    self._hand_out(action, action.records)
                else:
                    self._submit(ticket.partition, lambda policy: self._divert_blocked(policy, action))
            case _:  # pragma: no cover
                assert_never(action)

    def _submit(self, partition: Partition, task: Callable[[FailurePolicy], None]) -> None:
        policy = self._subscriptions[partition[0]].policy
        assert policy is not None  # noqa: S101 - such actions come only for handlers with a failure policy

        def run() -> None:
            started = self._clock.monotonic()
            try:
                task(policy)
            except Exception:  # noqa: BLE001 - a task without an answer logs its error
                _log.exception("%s/%s: %r failed", *partition, policy)
            self._times.add(retries=self._clock.monotonic() - started)

        self._partition_tasks.submit(partition, run)

    # The failure policy.

    def _prepare(self, policy: FailurePolicy, ticket: ev.Ticket) -> None:
        try:
            policy.assigned([ticket.partition])
        except Exception as error:  # noqa: BLE001 - after any error the partition waits and reports it
            self._feed(ev.PrepareFailed(ticket=ticket, error=describe(error)))
        else:
            self._feed(ev.PartitionPrepared(ticket=ticket))

    def _divert_blocked(self, policy: FailurePolicy, action: ev.RunHandler) -> None:
        """Divert the records that wait for others before the rest is handled, so that no record is lost in between."""
        records = action.records.without(action.without)
        if not self._is_wanted(action.ticket):
            return
        try:
            blocked = policy.find_blocked(records)
            if blocked:
                self._divert(policy, [records[place] for place in blocked], "")
        except Exception as error:  # noqa: BLE001 - after any error the partition waits and reports it
            self._end(action.ticket)
            self._feed(ev.DivertFailed(ticket=action.ticket, error=describe(error)))
            return
        if blocked:
            skipped = frozenset(records[place].offset for place in blocked)
            self._feed(ev.DivertedUntried(ticket=action.ticket, offsets=skipped))
            records = records.without(skipped)
        if records:
            self._hand_out(action, records)
        else:
            self._end(action.ticket)
            self._feed(ev.HandlerSucceeded(ticket=action.ticket))

    def _divert_poison(self, policy: FailurePolicy, action: ev.Divert) -> None:
        try:
            self._divert(policy, list(action.records), action.error)
        except Exception as error:  # noqa: BLE001 - after any error the partition waits and reports it
            self._feed(ev.DivertFailed(ticket=action.ticket, error=describe(error)))
        else:
            self._feed(ev.Diverted(ticket=action.ticket))

    def _divert(self, policy: FailurePolicy, messages: Sequence[Message], error: str) -> None:
        now = self._clock.now()
        policy.divert([FailedMessage(message=message, error=error, failed_at=now) for message in messages])
        first = messages[0]
        self._metrics.increment(
            "records.put_aside", len(messages), topic=first.topic, partition=first.partition
        )

    def forget(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if self._subscriptions[partition[0]].policy is not None:
                self._forget(partition)

    def _forget(self, partition: Partition) -> None:
        self._submit(partition, lambda policy: policy.revoked([partition]))

    # The handler.

    def _hand_out(self, action: ev.RunHandler, records: Records) -> None:
        ticket, (topic, partition) = action.ticket, action.ticket.partition
        started, flag = self._clock.monotonic(), CancelFlag()

        def done(error: BaseException | None) -> None:
            self._end(ticket)
            seconds = self._clock.monotonic() - started
            self._times.add(handler=seconds, records=0 if error else len(records))
            self._metrics.timing("handler.seconds", seconds, topic=topic, partition=partition)
            self._report_result(ticket, records, error)

        job = HandlerJob(
            ticket=ticket,
            handler=self._subscriptions[topic].handler,
            batch=Batch(
                records,
                topic=topic,
                partition=partition,
                first_offset=action.records.first_offset,
                last_offset=action.records.last_offset,
                attempt=action.attempt,
                is_cancelled=lambda: flag.is_set,
                source=self._subscriptions[topic].source_of(topic),
                group=self._group if action.names_group else None,
            ),
            done=done,
            flag=flag,
        )
        with self._lock:
            if ticket not in self._jobs:
                return
            self._jobs[ticket] = job
        self._workers[self._subscriptions[topic].rules.topic].start(job)

    def _report_result(self, ticket: ev.Ticket, records: Records, error: BaseException | None) -> None:
        topic, partition = ticket.partition
        if error is None:
            self._metrics.increment("batches.handled", topic=topic, partition=partition)
            self._metrics.increment("records.handled", len(records), topic=topic, partition=partition)
            self._feed(ev.HandlerSucceeded(ticket=ticket))
        else:
            kind = classify_error(error)
            self._metrics.increment("batches.failed", topic=topic, partition=partition, kind=kind)
            _log.info("%s/%s: the handler raised", topic, partition, exc_info=error)
            self._feed(ev.HandlerFailed(ticket=ticket, error=describe(error), kind=kind))

    def _is_wanted(self, ticket: ev.Ticket) -> bool:
        with self._lock:
            return ticket in self._jobs

    def _end(self, ticket: ev.Ticket) -> None:
        with self._lock:
            self._jobs.pop(ticket, None)

    def _cancel(self, ticket: ev.Ticket) -> None:
        with self._lock:
            job = self._jobs.pop(ticket, None)
        if job is not None:
            self._metrics.increment(
                "batches.cancelled", topic=ticket.partition[0], partition=ticket.partition[1]
            )
            self._workers[self._subscriptions[ticket.partition[0]].rules.topic].cancel(job)

    def close(self) -> None:
        for workers in self._workers.values():
            workers.close()


def classify_error(error: BaseException) -> ev.FailureKind:
    match error:
        case TransientError():
            return "transient"
        case ConfigurationError():
            return "configuration"
        case PermanentError():
            return "permanent"
        case _:
            return "unknown"


def describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the str() of a user's exception may fail, too
        text = "(its text cannot be read)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
