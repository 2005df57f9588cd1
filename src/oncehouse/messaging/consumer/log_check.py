"""Reads where the records of committed leader epochs end, in the background of the poll.

One thread asks as long as partitions lack an answer: a partition without a leader blocks neither the others nor a stop.
It has its own client and passes the answers to the polling thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Condition, Thread
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from oncehouse.common.kafka_client import describe_error
from oncehouse.common.leader_epochs import EpochEnd
from oncehouse.messaging.failure_policy import Partition

_RETRY_SECONDS = 1.0
_LOG_EVERY_SECONDS = 60.0
_END_SECONDS = 3.0
_log = logging.getLogger("oncehouse.consumer")

Answers = Iterable[tuple[Partition, EpochEnd | KafkaError]]


class ReadEpochEnds(Protocol):
    def __call__(self, epochs: Mapping[Partition, int], stop: Callable[[], bool]) -> Answers: ...


class LogCheck:
    def __init__(self, group: str, read_epoch_ends: ReadEpochEnds) -> None:
        self._group = group
        self._read_epoch_ends = read_epoch_ends
        self._changed = Condition()
        self._open: dict[Partition, tuple[int, int]] = {}
        """Assignment and leader epoch: answers to requests before a reassignment are ignored."""
        self._term = 0
        self._answers: dict[Partition, EpochEnd] = {}
        self._logged_at: dict[Partition, float] = {}
        self._thread: Thread | None = None
        self._closed = False

    def begin(self, epochs: Mapping[Partition, int]) -> None:
        with self._changed:
            self._term += 1
            self._open |= {partition: (self._term, epoch) for partition, epoch in epochs.items()}
            for partition in epochs:
                self._answers.pop(partition, None)
            self._changed.notify_all()
            if self._open and self._thread is None:
                self._thread = Thread(target=self._run, name="oncehouse-log-check", daemon=True)
                self._thread.start()

    def forget(self, partitions: Collection[Partition]) -> None:
        with self._changed:
            for partition in partitions:
                self._open.pop(partition, None)
                self._answers.pop(partition, None)
            self._changed.notify_all()

    def take(self) -> dict[Partition, EpochEnd]:
        """The answers since the last call."""
        with self._changed:
            taken, self._answers = self._answers, {}
        return taken

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_END_SECONDS)

    # Run by the thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed or not self._open:
                    self._thread = None
                    return
                term, open_epochs = self._term, dict(self._open)
            self._ask(term, open_epochs)
            with self._changed:
                if self._open and not self._is_over(term):
                    self._changed.wait(_RETRY_SECONDS)

    def _is_over(self, term: int) -> bool:
        """Whether this round is outdated: newly assigned partitions wait for the next."""
        return self._closed or self._term != term or not self._open

    def _ask(self, term: int, open_epochs: Mapping[Partition, tuple[int, int]]) -> None:
        epochs = {partition: epoch for partition, (_, epoch) in open_epochs.items()}
        try:
            for partition, answer in self._read_epoch_ends(epochs, lambda: self._is_over(term)):
                if isinstance(answer, EpochEnd):
                    self._keep(partition, open_epochs[partition], answer)
                else:
                    self._log_wait(partition, answer.str())
        except KafkaException as error:
            for partition in open_epochs:
                self._log_wait(partition, describe_error(error))

    def _keep(self, partition: Partition, term_epoch: tuple[int, int], answer: EpochEnd) -> None:
        with self._changed:
            if self._open.get(partition) == term_epoch:
                del self._open[partition]
                self._answers[partition] = answer
        self._logged_at.pop(partition, None)

    def _log_wait(self, partition: Partition, error: str) -> None:
        now = time.monotonic()
        if now < self._logged_at.get(partition, -1e9) + _LOG_EVERY_SECONDS:
            return
        self._logged_at[partition] = now
        _log.warning(
            "group %s: %s/%s waits: Kafka does not say whether it still has what was read (%s); it is asked again. "
            "Check that the partition has a leader",
            self._group, *partition, error,
        )  # fmt: skip
