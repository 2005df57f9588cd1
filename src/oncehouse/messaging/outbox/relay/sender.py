"""Sends claimed rows to Kafka by an idempotent producer, in order and without gaps.

A row counts as sent once the broker has acknowledged it with all in-sync replicas. Messages have no timeout of their
own: either all outstanding ones are acknowledged, or all are purged at once together with the producer, so a later row
of a key never overtakes an earlier one. A broker's refusal covers a whole request, so a row that was refused with
others is sent once more alone before it counts as refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from pydantic import SecretStr

from oncehouse.common.kafka_client import TIMEOUT_SECONDS, client_settings, describe_error
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.outbox.relay.delivery_batch import DeliveryBatch
from oncehouse.messaging.outbox.relay.types import ClaimedRow, RefusedRow, SendResult

_FLUSH_SECONDS = 0.1
_REQUIRED_SETTINGS = {
    "enable.idempotence": True,
    # A refused request ends the producer instead of letting later requests pass.
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,
    # As Java's producer does, so that a key goes to the same partition from every client.
    "partitioner": "murmur2_random",
}
_TOPIC_RETRY_SECONDS = (0.1, 0.4, 1.0)
_MISSING_TOPIC_SECONDS = 10.0
_TRANSIENT_ERRORS = frozenset({KafkaError.LEADER_NOT_AVAILABLE})


def producer_settings(bootstrap_servers: str, options: Mapping[str, str | SecretStr]) -> dict[str, Any]:
    if reserved := sorted(
        {*_REQUIRED_SETTINGS, "acks", "request.required.acks", "delivery.report.only.error"} & {*options}
    ):
        raise ConfigurationError(
            f"kafka.options sets {', '.join(reserved)}, on which the relay's guarantees depend; remove it"
        )
    return client_settings(bootstrap_servers, options) | _REQUIRED_SETTINGS


def open_producer(settings: dict[str, Any]) -> Producer:
    """Does not contact the brokers yet."""
    try:
        return Producer(settings)
    except KafkaException as error:
        raise ConfigurationError(
            f"kafka.options: the Kafka client refuses them: {describe_error(error)}"
        ) from error


def _bound_wait(give_up_at: float) -> float:
    return min(TIMEOUT_SECONDS, max(_FLUSH_SECONDS, give_up_at - time.monotonic()))


class KafkaSender:
    """One producer, replaced by a new one after any failure that could leave a gap.

    `positions`: report each message's partition and offset. `may_continue` is called while the sender waits for
    acknowledgements; False abandons all outstanding rows.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        options: Mapping[str, str | SecretStr],
        *,
        positions: bool = False,
        may_continue: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = producer_settings(bootstrap_servers, options)
        self._settings["error_cb"] = self._record_error
        self._servers = bootstrap_servers
        self._positions = positions
        self._may_go_on = may_continue
        # Opened at once, so that invalid options are reported at the start and not with the first message.
        self._producer: Producer | None = open_producer(self._settings)
        self._single_producer: Producer | None = None
        self._topics = TopicCache()
        self._client_error = ""

    def send(self, rows: Sequence[ClaimedRow], *, give_up_at: float) -> SendResult:
        self._client_error = ""
        if self._producer is None:
            self._producer = open_producer(self._settings)
        producer = self._producer
        try:
            missing = self._topics.find_missing(
                producer, {row.topic for row in rows}, timeout_seconds=_bound_wait(give_up_at)
            )
        except KafkaException as error:
            return self._give_up(self._new_batch(give_up_at), [], describe_error(error))
        batch = self._new_batch(give_up_at)
        refused = batch.produce(producer, rows, missing)
        if not self._flush(producer, give_up_at):
            return self._give_up(batch, refused, self._client_error)
        if batch.is_complete:
            return SendResult(acknowledged=batch.acknowledged, positions=batch.positions, refused=refused)
        self._discard()
        suspects = batch.find_suspects(rows)
        if not suspects:
            return self._give_up(batch, refused, batch.describe_failure() or self._client_error)
        return self._send_singly(suspects, batch, refused, give_up_at)

    def close(self) -> None:
        """Abandons outstanding rows."""
        self._discard()

    def _send_singly(
        self,
        suspects: list[list[ClaimedRow]],
        batch: DeliveryBatch,
        refused: list[RefusedRow],
        give_up_at: float,
    ) -> SendResult:
        """Send the rows of each key one after the other, each in its own request, until one is refused again."""
        if self._single_producer is None:
            self._single_producer = open_producer(
                self._settings | {"batch.num.messages": 1, "enable.gapless.guarantee": False}
            )
        alone = self._single_producer
        queues = [list(reversed(rows)) for rows in suspects]
        while queues:
            heads = [queue.pop() for queue in queues]
            single = self._new_batch(give_up_at)
            refused += single.produce(alone, heads, {})
            flushed = self._flush(alone, give_up_at)
            batch.acknowledged += single.acknowledged
            batch.positions += single.positions
            refusals = [
                RefusedRow(row, single.failed[row.seq].str()) for row in heads if single.is_refused(row)
            ]
            refused += refusals
            if not flushed or len(refusals) + len(single.acknowledged) < single.accepted or single.blocked:
                return self._give_up(batch, refused, self._client_error)
            done = set(single.acknowledged)
            queues = [queue for queue, head in zip(queues, heads, strict=True) if queue and head.seq in done]
        return SendResult(acknowledged=batch.acknowledged, positions=batch.positions, refused=refused)

    def _flush(self, producer: Producer, give_up_at: float) -> bool:
        """Wait for all delivery reports; False if messages without a report were purged."""
        while True:
            try:
                if not producer.flush(_FLUSH_SECONDS):
                    return True
            except (KafkaException, SystemError):
                # The client raises a fatal error from its next call, even in place of a delivery report: that message
                # counts as not sent. Outstanding messages would never be reported.
                self._purge(producer)
                return True
            if not self._may_wait(give_up_at):
                self._purge(producer)
                return False

    def _new_batch(self, give_up_at: float) -> DeliveryBatch:
        return DeliveryBatch(positions=self._positions, may_wait=lambda: self._may_wait(give_up_at))

    def _may_wait(self, give_up_at: float) -> bool:
        return time.monotonic() < give_up_at and self._may_go_on()

    def _purge(self, producer: Producer) -> None:
        producer.purge()
        for _ in range(3):
            with suppress(KafkaException, SystemError):
                if not producer.flush(1.0):
                    return

    def _give_up(self, batch: DeliveryBatch, refused: list[RefusedRow], why: str) -> SendResult:
        self._discard()
        self._topics.forget()
        return SendResult(
            acknowledged=batch.acknowledged,
            positions=batch.positions,
            refused=refused,
            error=f"Kafka at {self._servers} did not take the messages: {why or 'no acknowledgement in time'}",
        )

    def _discard(self) -> None:
        for producer in (self._producer, self._single_producer):
            if producer is not None:
                self._purge(producer)
        self._producer = self._single_producer = None

    def _record_error(self, error: KafkaError) -> None:
        self._client_error = error.str()


class TopicCache:
    """Which topics exist, asked once per topic, so that a message for a missing topic is refused at once.

    The producer itself would hold such a message back for half a minute, and all other messages of the claim with it.
    A broker that creates topics on first use gets a moment for it.
    """

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._existing: set[str] = set()
        self._missing: dict[str, tuple[float, str]] = {}

    def find_missing(
        self, producer: Producer, topics: Iterable[str], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> dict[str, str]:
        """Why messages cannot be sent to these topics; existing ones are left out. Raises KafkaException."""
        missing: dict[str, str] = {}
        for topic in topics:
            if topic in self._existing:
                continue
            until, reason = self._missing.get(topic, (0.0, ""))
            if self._monotonic() >= until:
                reason = self._ask(producer, topic, timeout_seconds)
            if reason:
                missing[topic] = reason
        return missing

    def forget(self) -> None:
        """After a failure: a topic may have been deleted."""
        self._existing.clear()

    def _ask(self, producer: Producer, topic: str, timeout_seconds: float) -> str:
        for seconds in (*_TOPIC_RETRY_SECONDS, None):
            error = producer.list_topics(topic, timeout=timeout_seconds).topics[topic].error
            if error is None or error.code() in _TRANSIENT_ERRORS:
                self._existing.add(topic)
                self._missing.pop(topic, None)
                return ""
            if seconds is not None:
                self._sleep(seconds)
        reason = f"topic {topic}: {error.str()}; create the topic or grant Write on it, then retry"
        self._missing[topic] = (self._monotonic() + _MISSING_TOPIC_SECONDS, reason)
        return reason
