"""Records of Kafka read once more, by exactly the offsets that an epoch settled, without Spark.

A consumer that commits nothing and joins no group is assigned one partition at a time, so records come in Kafka's
order. Holes among offsets are as they were: aborted transactions. What retention or compaction has taken since is told
by whoever compares the counts; other records in the place of those that were read are refused by leader epochs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from oncehouse.common.kafka_client import describe_error
from oncehouse.common.leader_epochs import ask_epoch_ends
from oncehouse.errors import PermanentError, TransientError
from oncehouse.pipeline.checks.record_sample import as_block
from oncehouse.pipeline.ingest.kafka_source import client_settings

if TYPE_CHECKING:
    import pyarrow as pa

    from oncehouse.config.pipeline import Kafka
    from oncehouse.ledger.models import OffsetRange

_MESSAGES_A_POLL = 10_000
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0


def read_again(
    kafka: Kafka, ranges: Sequence[OffsetRange], *, group: str, headers: bool
) -> Iterator[pa.RecordBatch]:
    """Blocks as a read task gets them, in the order of topic, partition and offset.

    `group` is asked for by the client and joined by nobody: one that the user may read.

    Raises PermanentError where the log was cut since and holds other records at these offsets.
    """
    _demand_same_log(kafka, ranges, group)
    consumer = Consumer(
        {
            **client_settings(kafka),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Offsets that are gone must not be taken for an order to begin somewhere else.
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
    )
    try:
        for span in sorted(ranges):
            for messages in _read_span(consumer, span):
                block = as_block(kafka, messages)
                yield block if headers else block.drop_columns(["headers"])
    except KafkaException as error:
        raise _away(kafka, error) from error
    finally:
        consumer.close()


def _demand_same_log(kafka: Kafka, ranges: Sequence[OffsetRange], group: str) -> None:
    spans = {(span.topic, span.partition): span for span in ranges if span.leader_epoch is not None}
    asked = {place: span.leader_epoch for place, span in spans.items() if span.leader_epoch is not None}
    try:
        answers = ask_epoch_ends(
            client_settings(kafka), asked, group=group, timeout_seconds=_PATIENCE_SECONDS
        )
    except KafkaException as error:
        raise _away(kafka, error) from error
    for place, answer in answers.items():
        span = spans[place]
        if not answer.holds(span.leader_epoch, span.end):
            raise PermanentError(
                f"Topic {span.topic} partition {span.partition}: Kafka's log was cut since offsets {span.start} to "
                f"{span.end - 1} were read (leader epoch {span.leader_epoch}), and holds other records at some of "
                "them. They cannot be read again; nothing was changed."
            )


def _away(kafka: Kafka, error: KafkaException) -> TransientError:
    return TransientError(
        f"Kafka at {kafka.bootstrap_servers} does not give the records again ({describe_error(error)}). Check that "
        "the broker is up; nothing was changed."
    )


def _read_span(consumer: Consumer, span: OffsetRange) -> Iterator[list[Message]]:
    consumer.assign([TopicPartition(span.topic, span.partition, span.start)])
    heard = time.monotonic()
    while True:
        found = consumer.consume(_MESSAGES_A_POLL, timeout=_POLL_SECONDS)
        kept, ended = _sort_out(found, span)
        if kept:
            yield kept
        if ended:
            return
        if found:
            heard = time.monotonic()
        elif time.monotonic() - heard > _PATIENCE_SECONDS:
            raise TransientError(
                f"Kafka gave nothing more of topic {span.topic} partition {span.partition} up to offset {span.end} for "
                f"{_PATIENCE_SECONDS:.0f} s. Check that the broker is up; nothing was changed."
            )


def _sort_out(found: Sequence[Message], span: OffsetRange) -> tuple[list[Message], bool]:
    """The records of the range, and whether its end was seen: by a record behind it, or by the end of the log."""
    kept, ended = [], False
    for message in found:
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - how the client names it
                raise KafkaException(error)
            ended = True
        elif int(message.offset() or 0) >= span.end:
            ended = True
        else:
            kept.append(message)
            ended = ended or int(message.offset() or 0) == span.end - 1
    return kept, ended
