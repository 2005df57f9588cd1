"""Work that is no DataFrame, sent to the executors: one Spark task a plan, one result a task."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def name_attempt(prefix: str = "") -> str:
    """A name for what this attempt of a task writes, which no other attempt has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{prefix}{context.taskAttemptId() if context else 0}-{uuid.uuid4().hex[:8]}"


def run_tasks(spark: SparkSession, work: Any, plans: Sequence[Any]) -> list[Any]:
    """`work` applied to each plan, in the order of the plans; the first task that fails raises here."""
    return spark.sparkContext.parallelize(plans, len(plans)).map(work).collect()


def run_tasks_on_half(spark: SparkSession, work: Any, plans: Sequence[Any]) -> list[Any]:
    """The same on half of the cores: a task keeps its core to its end, so that other work would wait for it."""
    slices = min(len(plans), max(1, spark.sparkContext.defaultParallelism // 2))
    return spark.sparkContext.parallelize(plans, slices).map(work).collect()
