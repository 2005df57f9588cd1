"""The read task that fetches its records from Kafka itself, and the job of such tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.common import structured_logging
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.ingest.part_files import PARTITIONS
from oncehouse.pipeline.kafka_reader.access import KafkaAccess, SourceRange, TopicPlace
from oncehouse.pipeline.spark.tasks import name_attempt, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class RangePlan:
    """All that a task needs to read its part of an epoch."""

    read: ReadPlan
    access: KafkaAccess
    ranges: tuple[SourceRange, ...]
    headers: bool


def read_epoch_ranges(
    spark: SparkSession,
    plan: ReadPlan,
    access: KafkaAccess,
    ranges: Sequence[OffsetRange],
    topic_ids: dict[str, str],
    *,
    headers: bool,
) -> list[TaskManifest]:
    """The read job: one task a Kafka partition, or one for all of a small epoch."""
    sources = [
        SourceRange(
            place=TopicPlace(topic=span.topic, topic_id=topic_ids[span.topic], partition=span.partition),
            source=plan.topics.index(span.topic) * PARTITIONS + span.partition,
            start=span.start,
            end=span.end,
        )
        for span in ranges
        if span.end > span.start
    ]
    shares = [tuple(sources)] if plan.whole else [(source,) for source in sources]
    return run_tasks(
        spark,
        read_range_task,
        [RangePlan(read=plan, access=access, ranges=share, headers=headers) for share in shares],
    )


def read_range_task(plan: RangePlan) -> TaskManifest:
    # Workers alone decode and fetch; the driver, which imports this module, needs neither.
    from oncehouse.pipeline.ingest.read_task import read_records
    from oncehouse.pipeline.kafka_reader.range_reader import read_ranges

    with structured_logging.bound(pipeline=plan.read.pipeline, epoch=plan.read.epoch):
        blocks = read_ranges(plan.access, plan.ranges, headers=plan.headers)
        return read_records(plan.read, name_attempt("r"), blocks)
