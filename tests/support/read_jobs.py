"""The read job of an epoch, whichever reader the pipeline has: what a test does around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.stages import direct_ingest, kafka_stream

Read = Callable[[], list[TaskManifest]]


def wrap_reads(patched: pytest.MonkeyPatch, around: Callable[[Read, ReadPlan], list[TaskManifest]]) -> None:
    """`around` is called in the place of each read job, with the job and its plan."""
    read_dataframe, read_epoch_ranges = kafka_stream.read_dataframe, direct_ingest.read_epoch_ranges

    def read_records(frame, plan):
        return around(lambda: read_dataframe(frame, plan), plan)

    def read_offsets(spark, plan, *rest, **more):
        return around(lambda: read_epoch_ranges(spark, plan, *rest, **more), plan)

    patched.setattr(kafka_stream, "read_dataframe", read_records)
    patched.setattr(direct_ingest, "read_epoch_ranges", read_offsets)
