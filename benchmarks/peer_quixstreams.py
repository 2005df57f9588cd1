"""A peer: Quix Streams with a batching sink. A checkpoint of so many messages is one insert for each partition.

The fetch settings are the tuned ones; without deduplication, at least once. Runs until it is told to end.
"""

from __future__ import annotations

from quixstreams import Application
from quixstreams.models import BytesDeserializer
from quixstreams.sinks import BatchingSink, SinkBatch

from peer_task import BATCH_SECONDS, Table, Task, read_task, report_start


class ClickHouseSink(BatchingSink):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = task

    def setup(self) -> None:
        self._table = Table(self._task)

    def write(self, batch: SinkBatch) -> None:
        self._table.insert_decoded(item.value for item in batch)


def main() -> None:
    task = read_task()
    application = Application(
        broker_address=task.servers,
        consumer_group=task.group,
        auto_offset_reset="earliest",
        commit_interval=BATCH_SECONDS,
        commit_every=task.batch_rows,
        consumer_extra_config=task.client_settings,
        auto_create_topics=False,
        loglevel="WARNING",
    )
    topic = application.topic(task.topic, value_deserializer=BytesDeserializer())
    application.dataframe(topic).sink(ClickHouseSink(task))
    report_start()
    application.run()


if __name__ == "__main__":
    main()
