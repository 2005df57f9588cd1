"""Kafka's client behind the interface of `client`: joins the group, reads plans, translates errors.

confluent-kafka blocks other threads for as long as a poll lasts, so all calls come from the polling thread. Partitions
are assigned and revoked all at once (range) or incrementally (cooperative-sticky), as the assignor decides.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from pydantic import SecretStr

from oncehouse.common.kafka_client import TIMEOUT_SECONDS, client_settings, describe_error
from oncehouse.common.leader_epochs import receive_epoch_ends
from oncehouse.errors import ConfigurationError, DataLossError, PermanentError, TransientError
from oncehouse.messaging.consumer.client import Listener
from oncehouse.messaging.consumer.commit_plan import CommittedPosition, read_plan, write_plan
from oncehouse.messaging.consumer.log_check import Answers, LogCheck
from oncehouse.messaging.consumer.log_order import cut_log
from oncehouse.messaging.consumer.metrics import Metrics
from oncehouse.messaging.consumer.records import read_epoch, split_errors
from oncehouse.messaging.failure_policy import Partition, RetryBroker
from oncehouse.messaging.retries.kafka_retry_broker import KafkaRetryBroker, read_committed

_RESERVED_OPTIONS = {
    "group.id": "give it as group=…",
    "enable.auto.commit": "offsets are committed after the handler's success, and only then",
    "enable.auto.offset.store": "offsets are committed after the handler's success, and only then",
    "bootstrap.servers": "give it as bootstrap_servers=…",
}
_READ_POSITIONS_SECONDS = 60.0
_RETRY_SECONDS = 0.1
_NEW_TOPIC_SECONDS = 2.0
_LONGEST_REST_SECONDS = 0.5
_HOT_RECORDS = 1_000
_FATAL = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic again, or take it out of the consumer",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant Read on the topic to this user",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant Read on the group to this user",
    KafkaError._AUTHENTICATION: "check the user and password in the options",  # noqa: SLF001 - the client's own code
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "every consumer of a group needs the same partition.assignment.strategy",
}
_log = logging.getLogger("oncehouse.consumer")


class _Collector:
    """Pauses Python's garbage collector, which would traverse all waiting records for every 700 new ones.

    Paused while the client creates records; under a high load also in between, but never longer than half a second.
    """

    def __init__(self) -> None:
        self._was_on = True
        self._rests_since: float | None = None
        self._is_hot = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        now = time.monotonic()
        if self._rests_since is None:
            self._was_on, self._rests_since = gc.isenabled(), now
            gc.disable()
        self._is_hot = False
        try:
            yield
        finally:
            if not self._is_hot or now > self._rests_since + _LONGEST_REST_SECONDS:
                self.wake()

    def note(self, records: int) -> None:
        self._is_hot = records >= _HOT_RECORDS

    def wake(self) -> None:
        if self._rests_since is not None and self._was_on:
            gc.enable()
        self._rests_since = None


@dataclass(kw_only=True)
class _HeldPartition:
    """A partition whose log has not yet been verified to be the one that was read."""

    position: CommittedPosition
    paused: bool = False
    """Whether the consumer has paused it in the meantime."""


class KafkaClient:
    def __init__(
        self,
        *,
        bootstrap_servers: str,
        group: str,
        options: Mapping[str, str | SecretStr],
        metrics: Metrics,
    ) -> None:
        for name in _RESERVED_OPTIONS.keys() & options.keys():
            raise ConfigurationError(f"options: {name} cannot be set; {_RESERVED_OPTIONS[name]}")
        self._bootstrap_servers = bootstrap_servers
        self._group = group
        self._options = options
        self._metrics = metrics
        self._beginning: Collection[str] = ()
        self._reassigned: dict[Partition, CommittedPosition] = {}
        self._unassigned: set[Partition] = set()
        self._held: dict[Partition, _HeldPartition] = {}
        self._log_check = LogCheck(group, self._read_epoch_ends)
        self._collector = _Collector()

    def open_retry_broker(self) -> RetryBroker:
        return KafkaRetryBroker(
            bootstrap_servers=self._bootstrap_servers, group=self._group, options=self._shared_options()
        )

    def _shared_options(self) -> dict[str, str | SecretStr]:
        """The options that a producer or an admin client accepts, too: how to reach the brokers."""
        shared = ("security.", "sasl.", "ssl.", "socket.", "broker.", "client.", "metadata.", "enable.ssl")
        return {name: value for name, value in self._options.items() if name.startswith(shared)}

    def open(self, topics: Sequence[str], *, beginning: Collection[str], listener: Listener) -> None:
        self._beginning, self._listener = beginning, listener
        # Partition p of a retry topic must go to the consumer of the source's partition p: range does that.
        assignor = "range" if beginning else "cooperative-sticky"
        settings = {
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": assignor,
            # By default the client checks only once a second whether its full queue has space again.
            "fetch.queue.backoff.ms": 10,
            **client_settings(self._bootstrap_servers, self._options),
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "on_commit": self._on_commit,
        }
        if settings.get("group.protocol") == "consumer":
            del settings["partition.assignment.strategy"]
        self._incremental = (
            "partition.assignment.strategy" not in settings
            or "cooperative" in settings["partition.assignment.strategy"]
        )
        try:
            self._consumer = ck.Consumer(settings)
        except KafkaException as error:
            raise ConfigurationError(
                f"options: the Kafka client refuses them: {describe_error(error)}"
            ) from error
        try:
            self._check(topics)
            self._consumer.subscribe(
                list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        except BaseException:
            self._consumer.close()
            raise

    def _check(self, topics: Sequence[str]) -> None:
        deadline = time.monotonic() + _NEW_TOPIC_SECONDS
        for topic in topics:
            while (error := self._find_topic_error(topic)) is not None:
                if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise ConfigurationError(
                        f"topic {topic}: {error.str()}; {_FATAL.get(error.code(), 'check the topic')}"
                    )
                # A broker may not know a topic yet that was created a moment ago.
                if time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"there is no topic {topic} at {self._bootstrap_servers}; create it first"
                    )
                time.sleep(0.1)

    def _find_topic_error(self, topic: str) -> KafkaError | None:
        try:
            found = self._consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].error
        except KafkaException as error:
            raise TransientError(
                f"Kafka at {self._bootstrap_servers} did not answer: {describe_error(error)}; "
                "check the address and that the brokers run"
            ) from error
        return found if found is not None and found.code() in _FATAL else None

    def consume(self, count: int, timeout_seconds: float) -> list[Any]:
        self._release()
        try:
            with self._collector.paused():
                raw = self._consumer.consume(count, timeout_seconds)
                self._collector.note(len(raw))
        except KafkaException as error:
            raise self._wrap_error(error.args[0]) or TransientError(describe_error(error)) from error
        records, errors = split_errors(raw)
        for message in errors:
            self._handle_error(message.error())
        return (
            self._drop_reassigned(records) if self._reassigned or self._unassigned or self._held else records
        )

    def _handle_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's own code
            return
        wrapped = self._wrap_error(error)
        if wrapped is not None:
            raise wrapped
        self._metrics.increment("client.errors")
        _log.warning("group %s: the Kafka client says: %s; it goes on by itself", self._group, error.str())

    def _wrap_error(self, error: KafkaError) -> PermanentError | None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the client's own code
            return DataLossError(
                f"group {self._group}: {error.str()}. Kafka has deleted what was not read yet, or an unclean leader "
                "election cut its log; look at the topic's retention and the brokers' logs, then set the group's "
                "offsets or auto.offset.reset"
            )
        if error.fatal() or error.code() in _FATAL:
            advice = _FATAL.get(error.code(), "look at the brokers' logs")
            return PermanentError(f"group {self._group}: {error.str()}; {advice}")
        return None

    def _drop_reassigned(self, records: list[Any]) -> list[Any]:
        """Drop records of partitions that were revoked, reassigned or held during the same call."""
        turned = self._reassigned | {key: held.position for key, held in self._held.items()}
        touched = self._unassigned | turned.keys()
        kept = [record for record in records if (record.topic(), record.partition()) not in touched]
        for (topic, partition), position in turned.items():
            dropped = any((record.topic(), record.partition()) == (topic, partition) for record in records)
            if dropped:
                start = self._start_of((topic, partition), position)
                self._seek(TopicPartition(topic, partition, start))
        self._reassigned, self._unassigned = {}, set()
        return kept

    def _seek(self, place: TopicPartition) -> None:
        try:
            self._consumer.seek(place)
        except KafkaException as error:
            # The new assignment has not started yet: the dropped records belonged to the old one.
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - the client's own code
                raise TransientError(
                    f"group {self._group}: {place.topic}/{place.partition} could not be set back: "
                    f"{describe_error(error)}"
                ) from error

    # The group.

    def _on_assign(self, consumer: ck.Consumer, partitions: list[TopicPartition]) -> None:
        positions = self._read_positions(consumer, partitions)
        # With the leader epoch the client returns to where the log is truncated later.
        starts = [
            TopicPartition(*key, self._start_of(key, position), leader_epoch=_client_epoch(position))
            for key, position in positions.items()
        ]
        if self._incremental:
            consumer.incremental_assign(starts)
        else:
            consumer.assign(starts)
        self._delay(consumer, positions)
        self._reassigned |= {key: position for key, position in positions.items() if key in self._unassigned}
        self._unassigned -= positions.keys()
        self._listener.on_assigned(positions)

    def _start_of(self, partition: Partition, position: CommittedPosition) -> int:
        if position.offset is not None:
            return position.offset
        return ck.OFFSET_BEGINNING if partition[0] in self._beginning else ck.OFFSET_STORED

    def _read_positions(
        self, consumer: ck.Consumer, partitions: list[TopicPartition]
    ) -> dict[Partition, CommittedPosition]:
        if not partitions:
            return {}
        deadline = time.monotonic() + _READ_POSITIONS_SECONDS
        while True:
            try:
                found = read_committed(consumer, partitions)
                break
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise TransientError(
                        f"group {self._group}: Kafka does not say where to begin: {describe_error(error)}"
                    ) from error
                time.sleep(_RETRY_SECONDS)
        return {
            (at.topic, at.partition): replace(
                read_plan(at.offset if at.offset >= 0 else None, at.metadata),
                leader_epoch=read_epoch(at.leader_epoch),
            )
            for at in found
        }

    def _delay(self, consumer: ck.Consumer, positions: Mapping[Partition, CommittedPosition]) -> None:
        """Return no records before the leader confirms that it has the records that were read.

        The client itself does not compare the log with committed leader epochs if it knows the leader already.
        """
        known = {
            key: position.leader_epoch
            for key, position in positions.items()
            if position.offset is not None and position.leader_epoch is not None
        }
        if known:
            consumer.pause([TopicPartition(*key) for key in known])
            self._held |= {key: _HeldPartition(position=positions[key]) for key in known}
            self._log_check.begin(known)

    def _read_epoch_ends(self, epochs: Mapping[Partition, int], stop: Callable[[], bool]) -> Answers:
        settings = client_settings(self._bootstrap_servers, self._shared_options())
        return receive_epoch_ends(
            settings, epochs, group=self._group, timeout_seconds=TIMEOUT_SECONDS, stop=stop
        )

    def _release(self) -> None:
        """Start the partitions whose log was confirmed to be the one that was read; raises DataLossError for others."""
        cut = []
        for key, answer in self._log_check.take().items():
            position, offset = self._held[key].position, self._held[key].position.offset or 0
            # Other clients commit leader epochs under which no record may have been written.
            same = answer.holds(position.leader_epoch, offset) if position.is_ours else answer.reaches(offset)
            if not same:
                cut.append(cut_log(self._group, key, answer.end, offset))
            elif not self._held.pop(key).paused:
                self._consumer.resume([TopicPartition(*key)])
        if cut:
            raise cut[0]

    def _on_revoke(self, consumer: ck.Consumer, partitions: list[TopicPartition]) -> None:
        keys = [(at.topic, at.partition) for at in partitions]
        self._listener.on_revoked(keys)
        self._unassign(consumer, partitions, keys)

    def _on_lost(self, consumer: ck.Consumer, partitions: list[TopicPartition]) -> None:
        keys = [(at.topic, at.partition) for at in partitions]
        self._listener.on_lost(keys)
        self._unassign(consumer, partitions, keys)

    def _unassign(
        self, consumer: ck.Consumer, partitions: list[TopicPartition], keys: Collection[Partition]
    ) -> None:
        self._unassigned |= set(keys)
        self._log_check.forget(keys)
        for key in keys:
            self._held.pop(key, None)
        if self._incremental:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    # Offsets.

    def commit(self, partition: Partition, position: CommittedPosition) -> None:
        self._consumer.commit(offsets=[_to_commit(partition, position)], asynchronous=True)

    def commit_now(self, positions: Mapping[Partition, CommittedPosition]) -> None:
        try:
            answered = self._consumer.commit(
                offsets=[_to_commit(key, position) for key, position in positions.items()], asynchronous=False
            )
        except KafkaException as error:
            raise TransientError(f"group {self._group}: {describe_error(error)}") from error
        for at in answered or ():
            if at.error is not None:
                raise TransientError(f"{at.topic}/{at.partition}: {at.error.str()}")

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            key, failed = (at.topic, at.partition), error or at.error
            if failed is not None:
                self._listener.on_commit_failed(key, failed.str())
            else:
                self._listener.on_committed(key, read_plan(at.offset, at.metadata))

    def pause(self, partition: Partition) -> None:
        if (held := self._held.get(partition)) is not None:
            held.paused = True
        else:
            self._consumer.pause([TopicPartition(*partition)])

    def resume(self, partition: Partition) -> None:
        if (held := self._held.get(partition)) is not None:
            held.paused = False
        else:
            self._consumer.resume([TopicPartition(*partition)])

    def end_of(self, partition: Partition) -> int | None:
        try:
            found = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
        except KafkaException:
            return None
        return found[1] if found is not None and found[1] >= 0 else None

    def first_of(self, partition: Partition) -> int | None:
        try:
            found = self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=TIMEOUT_SECONDS)
        except KafkaException:
            return None
        return found[0] if found is not None else None

    def close(self) -> None:
        self._collector.wake()
        self._log_check.close()
        self._consumer.close()


def _to_commit(partition: Partition, position: CommittedPosition) -> TopicPartition:
    offset = -1001 if position.offset is None else position.offset
    return TopicPartition(*partition, offset, write_plan(position), _client_epoch(position))


def _client_epoch(position: CommittedPosition) -> int:
    """The leader epoch as the client expects it: -1 if unknown."""
    return -1 if position.leader_epoch is None else position.leader_epoch
