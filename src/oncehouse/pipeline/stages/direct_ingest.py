"""The ingest stage whose tasks read Kafka themselves: epochs are planned from the ledger's offsets, without a stream.

It asks for the ends of the partitions every `epoch.max_wait`. What waits then is settled in as many epochs as it takes,
one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.formats.factory import needs_headers
from oncehouse.pipeline.ingest.epoch_sizing import cut_ranges, first_size
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics, Positions, check_topics
from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.ingest.range_task import read_epoch_ranges
from oncehouse.pipeline.kafka_reader.access import make_access
from oncehouse.pipeline.stages.kafka_stream import KafkaIngestStage

if TYPE_CHECKING:
    from oncehouse.pipeline.ingest.record_sizes import RecordSizes
    from oncehouse.pipeline.stages.supervisor import StageSupervisor


class DirectIngestStage(KafkaIngestStage):
    def __init__(self, stages: StageSupervisor, topics: KafkaTopics, sizes: RecordSizes) -> None:
        super().__init__(stages, topics, sizes)
        self._access = make_access(topics.kafka)

    def _run_stream(self, stop: threading.Event, *, once: bool) -> None:
        """Until partitions are added or a log ends before what was read, which is for the next start."""
        self._resizing.clear()
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", "ingest")
        self._perform_requests()
        if not self._gate.wait(stop.is_set):
            return
        positions = self._starting_positions()
        self._require_current()
        self._size = self._size or first_size(self._pipeline.epoch, self._sizes.mean_bytes())
        ends = self._topics.stable_ends(positions)
        while not stop.is_set():
            positions = self._settle_up_to(positions, ends, stop, once=once)
            if once or stop.wait(self._pipeline.epoch.max_wait):
                return
            self._perform_requests()
            facts = self._topics.describe()
            check_topics(facts, self._topic_ids, {}, {})
            if sum(found.partitions for found in facts.values()) != len(positions):
                return
            ends = self._topics.stable_ends(positions)
            if any(ends[place] < reached for place, reached in positions.items()):
                # A log that was cut, or a leader that lags: the next start compares it with the ledger's.
                return

    def _settle_up_to(
        self, positions: Positions, ends: Mapping[tuple[str, int], int], stop: threading.Event, *, once: bool
    ) -> Positions:
        waiting = tuple(
            OffsetRange(topic=topic, partition=partition, start=start, end=max(start, ends[topic, partition]))
            for (topic, partition), start in sorted(positions.items())
        )
        reached = dict(positions)
        while any(span.end > span.start for span in waiting) and self._gate.wait(stop.is_set):
            ranges, waiting = cut_ranges(waiting, self._known_size.most_records)
            with self._epoch_lock:
                self._settle(partial(self._read_ranges, ranges), ranges)
            reached |= {(span.topic, span.partition): span.end for span in ranges}
            if not once:
                self._perform_requests()
        return reached

    def _read_ranges(self, ranges: tuple[OffsetRange, ...], plan: ReadPlan) -> list[TaskManifest]:
        return self._note_read(
            read_epoch_ranges(
                self._spark,
                plan,
                self._access,
                ranges,
                self._topic_ids,
                headers=needs_headers(self._pipeline),
            )
        )
