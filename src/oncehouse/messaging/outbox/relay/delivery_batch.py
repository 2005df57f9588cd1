"""Rows that were given to one producer, and the delivery report of each.

Reports are stored as they arrive and evaluated later: the client may call the callback while it raises a fatal error,
when no method of the client may be called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from oncehouse.common.kafka_client import describe_error
from oncehouse.messaging.header_encoding import decode_headers
from oncehouse.messaging.message import MESSAGE_ID
from oncehouse.messaging.outbox.relay.types import ClaimedRow, RefusedRow, SentPosition

REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        # The client's own codes begin with an underscore.
        KafkaError._INVALID_ARG,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
"""Errors of messages that Kafka will never accept as they are."""
_FULL_QUEUE_SECONDS = 0.05


class DeliveryBatch:
    def __init__(self, *, positions: bool, may_wait: Callable[[], bool] = lambda: True) -> None:
        """`may_wait` is called while the producer's queue is full; False leaves the remaining rows unsent."""
        self.accepted = 0
        self.acknowledged: list[int] = []
        self.positions: list[SentPosition] = []
        self.failed: dict[int, KafkaError] = {}
        self.blocked: str | None = None
        """Why the producer accepts nothing more; the remaining rows were not sent."""
        self._may_wait = may_wait
        self._report = self._report_position if positions else self._report_success

    def produce(
        self, producer: Producer, rows: Sequence[ClaimedRow], missing: Mapping[str, str]
    ) -> list[RefusedRow]:
        """Give rows to the producer; returns those that it refuses. Later rows of a refused row's key are left out."""
        refused: list[RefusedRow] = []
        parked: set[tuple[str, bytes]] = set()
        for row in rows:
            if parked and row.key is not None and (row.topic, row.key) in parked:
                continue
            reason = missing.get(row.topic) if missing else None
            reason = reason or self._produce(producer, row)
            if self.blocked is not None:
                break
            if reason is not None:
                refused.append(RefusedRow(row, reason))
                if row.key is not None:
                    parked.add((row.topic, row.key))
        return refused

    def _produce(self, producer: Producer, row: ClaimedRow) -> str | None:
        """Why this row can never be sent; None once it is queued."""
        headers: list[tuple[str, str | bytes | None]] = [(MESSAGE_ID, row.message_id)]
        while True:
            try:
                if row.headers:
                    headers[:0] = decode_headers(row.headers)
                producer.produce(
                    row.topic, row.value, row.key, headers=headers, on_delivery=partial(self._report, row.seq)
                )
            except BufferError:
                if not self._may_wait():
                    self.blocked = "the producer's queue is full and not draining"
                    return None
                # A fatal error is raised here once; `produce` raises it again.
                with suppress(KafkaException, SystemError):
                    producer.poll(_FULL_QUEUE_SECONDS)
                del headers[:-1]
            except KafkaException as error:
                if error.args[0].code() in REFUSALS:
                    return describe_error(error)
                self.blocked = describe_error(error)
                return None
            except (ValueError, TypeError) as error:
                return str(error)
            else:
                self.accepted += 1
                return None

    def _report_success(self, seq: int, error: KafkaError | None, _message: KafkaMessage) -> None:
        if error is None:
            self.acknowledged.append(seq)
        else:
            self.failed[seq] = error

    def _report_position(self, seq: int, error: KafkaError | None, message: KafkaMessage) -> None:
        self._report_success(seq, error, message)
        if error is None:
            self.positions.append(SentPosition(seq, message.partition() or 0, message.offset() or 0))

    @property
    def is_complete(self) -> bool:
        """Whether all accepted rows were acknowledged; reports can be lost, so an absence of failures is not enough."""
        return self.blocked is None and len(self.acknowledged) == self.accepted

    def is_refused(self, row: ClaimedRow) -> bool:
        error = self.failed.get(row.seq)
        return error is not None and error.code() in REFUSALS

    def find_suspects(self, rows: Sequence[ClaimedRow]) -> list[list[ClaimedRow]]:
        """The refused rows, each with the remaining rows of its key; rows without a key are alone."""
        keys = {(row.topic, row.key) for row in rows if row.key is not None and self.is_refused(row)}
        done = set(self.acknowledged)
        by_key: dict[object, list[ClaimedRow]] = {}
        for row in rows:
            if row.seq in done:
                continue
            if row.key is None and self.is_refused(row):
                by_key[row.seq] = [row]
            elif row.key is not None and (row.topic, row.key) in keys:
                by_key.setdefault((row.topic, row.key), []).append(row)
        return list(by_key.values())

    def describe_failure(self) -> str:
        """The first error."""
        return self.blocked or next((error.str() for error in self.failed.values()), "")
