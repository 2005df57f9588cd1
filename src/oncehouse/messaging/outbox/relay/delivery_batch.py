"""Rows under way to Kafka in one producer, and what was reported of each.

A report is kept as it came and judged later: the client may call it while it carries a fatal error, and then nothing
of the client may be called.
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
from oncehouse.messaging.outbox.relay.types import Position, Refusal, Row

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
"""What Kafka says of a message that it will never take as it is."""
_ROOM_SECONDS = 0.05


class Flight:
    def __init__(self, *, positions: bool, may_wait: Callable[[], bool] = lambda: True) -> None:
        """`may_wait` is asked while a full producer takes nothing; False grounds the rest."""
        self.taken = 0
        self.acknowledged: list[int] = []
        self.positions: list[Position] = []
        self.failed: dict[int, KafkaError] = {}
        self.grounded: str | None = None
        """Why the producer takes nothing more at all; the rows from there on have not left."""
        self._may_wait = may_wait
        self._report = self._report_position if positions else self._report_success

    def take_off(self, producer: Producer, rows: Sequence[Row], missing: Mapping[str, str]) -> list[Refusal]:
        """Hand rows to the producer; returns those that it cannot take. What follows one of those in its key stays."""
        refused: list[Refusal] = []
        parked: set[tuple[str, bytes]] = set()
        for row in rows:
            if parked and row.key is not None and (row.topic, row.key) in parked:
                continue
            reason = missing.get(row.topic) if missing else None
            reason = reason or self._produce(producer, row)
            if self.grounded is not None:
                break
            if reason is not None:
                refused.append(Refusal(row, reason))
                if row.key is not None:
                    parked.add((row.topic, row.key))
        return refused

    def _produce(self, producer: Producer, row: Row) -> str | None:
        """Why this row can never be sent; None when it is under way."""
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
                    self.grounded = "the producer is full and gets nothing off"
                    return None
                # A fatal error is raised here once; produce says it again.
                with suppress(KafkaException, SystemError):
                    producer.poll(_ROOM_SECONDS)
                del headers[:-1]
            except KafkaException as error:
                if error.args[0].code() in REFUSALS:
                    return describe_error(error)
                self.grounded = describe_error(error)
                return None
            except (ValueError, TypeError) as error:
                return str(error)
            else:
                self.taken += 1
                return None

    def _report_success(self, seq: int, error: KafkaError | None, _message: KafkaMessage) -> None:
        if error is None:
            self.acknowledged.append(seq)
        else:
            self.failed[seq] = error

    def _report_position(self, seq: int, error: KafkaError | None, message: KafkaMessage) -> None:
        self._report_success(seq, error, message)
        if error is None:
            self.positions.append(Position(seq, message.partition() or 0, message.offset() or 0))

    @property
    def is_whole(self) -> bool:
        """Whether all that could be sent was acknowledged; a report may be lost, so failures alone do not tell."""
        return self.grounded is None and len(self.acknowledged) == self.taken

    def is_refused(self, row: Row) -> bool:
        error = self.failed.get(row.seq)
        return error is not None and error.code() in REFUSALS

    def find_suspects(self, rows: Sequence[Row]) -> list[list[Row]]:
        """The rows that were refused, each with what is left of its key: rows without a key stand alone."""
        keys = {(row.topic, row.key) for row in rows if row.key is not None and self.is_refused(row)}
        done = set(self.acknowledged)
        by_key: dict[object, list[Row]] = {}
        for row in rows:
            if row.seq in done:
                continue
            if row.key is None and self.is_refused(row):
                by_key[row.seq] = [row]
            elif row.key is not None and (row.topic, row.key) in keys:
                by_key.setdefault((row.topic, row.key), []).append(row)
        return list(by_key.values())

    def tell_failure(self) -> str:
        """What the first failure says that is not merely a neighbour's."""
        return self.grounded or next((error.str() for error in self.failed.values()), "")
