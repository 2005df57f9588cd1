"""A peer: arroyo with batching. Messages go into batches, a batch is one insert, offsets are committed behind it.

The fetch settings are the tuned ones; without deduplication. Runs until it is told to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arroyo import Message, Topic
from arroyo.backends.kafka import KafkaConsumer, KafkaPayload
from arroyo.backends.kafka.configuration import build_kafka_consumer_configuration
from arroyo.commit import ONCE_PER_SECOND
from arroyo.processing import StreamProcessor
from arroyo.processing.strategies import BatchStep, CommitOffsets, RunTask
from arroyo.processing.strategies.abstract import ProcessingStrategy, ProcessingStrategyFactory
from arroyo.types import Commit, Partition

from peer_task import BATCH_SECONDS, Table, read_task, report_start


class Factory(ProcessingStrategyFactory[KafkaPayload]):
    def __init__(self, table: Table, batch_rows: int) -> None:
        self._table = table
        self._batch_rows = batch_rows

    def create_with_partitions(
        self, commit: Commit, _partitions: Mapping[Partition, int]
    ) -> ProcessingStrategy[KafkaPayload]:
        def insert(message: Message[Any]) -> None:
            self._table.insert_decoded(one.payload.value for one in message.payload)

        return BatchStep(
            max_batch_size=self._batch_rows,
            max_batch_time=BATCH_SECONDS,
            next_step=RunTask(insert, CommitOffsets(commit)),
        )


def main() -> None:
    task = read_task()
    settings = build_kafka_consumer_configuration(
        task.client_settings,
        group_id=task.group,
        auto_offset_reset="earliest",
        queued_min_messages=task.client_settings.get("queued.min.messages"),
        queued_max_messages_kbytes=task.client_settings.get("queued.max.messages.kbytes"),
        bootstrap_servers=[task.servers],
        enable_auto_commit=False,
    )
    processor = StreamProcessor(
        consumer=KafkaConsumer(settings),
        topic=Topic(task.topic),
        processor_factory=Factory(Table(task), task.batch_rows),
        commit_policy=ONCE_PER_SECOND,
    )
    report_start()
    processor.run()


if __name__ == "__main__":
    main()
