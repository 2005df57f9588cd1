"""Claimed rows into Kafka, by an idempotent producer, in order and without gaps.

A row counts as sent when the broker has acknowledged it with all replicas. Nothing times out by itself: either all
that is outstanding is acknowledged, or all of it is given up at once (`purge`) and the producer with it, so that a
later row of a key never overtakes an earlier one. A refusal by the broker may belong to a neighbour in the same
request, so who was refused among others is tried once more alone before it is called refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from pydantic import SecretStr

from oncehouse.common.kafka_client import TIMEOUT_SECONDS, client_settings, describe_error
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.outbox.relay.delivery_batch import Flight
from oncehouse.messaging.outbox.relay.topic_cache import KnownTopics
from oncehouse.messaging.outbox.relay.types import Refusal, Row, Sent

_FLUSH_SECONDS = 0.1
_OURS = {
    "enable.idempotence": True,
    # A refused request ends the producer, instead of letting the requests behind it through.
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,
    # As Java's producer does, so that a key goes to the same partition whoever sends it.
    "partitioner": "murmur2_random",
}


def producer_settings(bootstrap_servers: str, options: Mapping[str, str | SecretStr]) -> dict[str, Any]:
    if taken := sorted({*_OURS, "acks", "request.required.acks", "delivery.report.only.error"} & {*options}):
        raise ConfigurationError(
            f"kafka.options sets {', '.join(taken)}, which the relay's promises hang on; take it out"
        )
    return client_settings(bootstrap_servers, options) | _OURS


def open_producer(settings: dict[str, Any]) -> Producer:
    """Asks no broker yet."""
    try:
        return Producer(settings)
    except KafkaException as error:
        raise ConfigurationError(
            f"kafka.options: the Kafka client refuses them: {describe_error(error)}"
        ) from error


def _bound_wait(give_up_at: float) -> float:
    return min(TIMEOUT_SECONDS, max(_FLUSH_SECONDS, give_up_at - time.monotonic()))


class KafkaSender:
    """One producer, replaced by a new one after anything that could leave a gap.

    `positions` also says where each message stands; `may_go_on` is asked while acknowledgements are waited for, and
    False gives everything up at once.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        options: Mapping[str, str | SecretStr],
        *,
        positions: bool = False,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = producer_settings(bootstrap_servers, options)
        self._settings["error_cb"] = self._hear
        self._servers = bootstrap_servers
        self._positions = positions
        self._may_go_on = may_go_on
        # Opened at once, so that options that the client refuses are told at the start and not at the first message.
        self._producer: Producer | None = open_producer(self._settings)
        self._alone: Producer | None = None
        self._topics = KnownTopics()
        self._heard = ""

    def send(self, rows: Sequence[Row], *, give_up_at: float) -> Sent:
        self._heard = ""
        if self._producer is None:
            self._producer = open_producer(self._settings)
        producer = self._producer
        try:
            missing = self._topics.find_missing(
                producer, {row.topic for row in rows}, timeout_seconds=_bound_wait(give_up_at)
            )
        except KafkaException as error:
            return self._give_up(self._flight(give_up_at), [], describe_error(error))
        flight = self._flight(give_up_at)
        refused = flight.take_off(producer, rows, missing)
        if not self._land(producer, give_up_at):
            return self._give_up(flight, refused, self._heard)
        if flight.is_whole:
            return Sent(acknowledged=flight.acknowledged, positions=flight.positions, refused=refused)
        self._discard()
        suspects = flight.find_suspects(rows)
        if not suspects:
            return self._give_up(flight, refused, flight.tell_failure() or self._heard)
        return self._send_alone(suspects, flight, refused, give_up_at)

    def close(self) -> None:
        """Whatever is still under way is given up."""
        self._discard()

    def _send_alone(
        self, suspects: list[list[Row]], flight: Flight, refused: list[Refusal], give_up_at: float
    ) -> Sent:
        """The rows of each key one after the other, each in a request of its own, until one is refused again."""
        if self._alone is None:
            self._alone = open_producer(
                self._settings | {"batch.num.messages": 1, "enable.gapless.guarantee": False}
            )
        alone = self._alone
        queues = [list(reversed(rows)) for rows in suspects]
        while queues:
            heads = [queue.pop() for queue in queues]
            once = self._flight(give_up_at)
            refused += once.take_off(alone, heads, {})
            landed = self._land(alone, give_up_at)
            flight.acknowledged += once.acknowledged
            flight.positions += once.positions
            refusals = [Refusal(row, once.failed[row.seq].str()) for row in heads if once.is_refused(row)]
            refused += refusals
            if not landed or len(refusals) + len(once.acknowledged) < once.taken or once.grounded:
                return self._give_up(flight, refused, self._heard)
            done = set(once.acknowledged)
            queues = [queue for queue, head in zip(queues, heads, strict=True) if queue and head.seq in done]
        return Sent(acknowledged=flight.acknowledged, positions=flight.positions, refused=refused)

    def _land(self, producer: Producer, give_up_at: float) -> bool:
        """Wait for the reports of all messages; False when those that had none were given up."""
        while True:
            try:
                if not producer.flush(_FLUSH_SECONDS):
                    return True
            except (KafkaException, SystemError):
                # The client raises a fatal error from whatever call comes next, even over a report's head: that one
                # has no report then, and counts as not sent. What is under way would never be reported.
                self._purge(producer)
                return True
            if not self._may_wait(give_up_at):
                self._purge(producer)
                return False

    def _flight(self, give_up_at: float) -> Flight:
        return Flight(positions=self._positions, may_wait=lambda: self._may_wait(give_up_at))

    def _may_wait(self, give_up_at: float) -> bool:
        return time.monotonic() < give_up_at and self._may_go_on()

    def _purge(self, producer: Producer) -> None:
        producer.purge()
        for _ in range(3):
            with suppress(KafkaException, SystemError):
                if not producer.flush(1.0):
                    return

    def _give_up(self, flight: Flight, refused: list[Refusal], why: str) -> Sent:
        self._discard()
        self._topics.forget()
        return Sent(
            acknowledged=flight.acknowledged,
            positions=flight.positions,
            refused=refused,
            error=f"Kafka at {self._servers} did not take the messages: {why or 'no acknowledgement in time'}",
        )

    def _discard(self) -> None:
        for producer in (self._producer, self._alone):
            if producer is not None:
                self._purge(producer)
        self._producer = self._alone = None

    def _hear(self, error: KafkaError) -> None:
        self._heard = error.str()
