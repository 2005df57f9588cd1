"""Counts what a run has done since its start and reports it. A failed report never ends a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from oncehouse.errors import OncehouseError
from oncehouse.ledger.catalog import batches, epochs, requests
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import BatchStatus, Counts, Request, RequestKind
from oncehouse.ledger.stats.summary import sum_replaced_rows
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics
from oncehouse.pipeline.progress import Progress, StreamProgress

_RATE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    progress: Progress
    parked: int
    refused: tuple[Request, ...] = ()
    """Requests that were refused during this run."""


class ProgressReporter:
    """Counts what has been done since the start."""

    def __init__(
        self, catalog: Catalog, topics: KafkaTopics | None, listen: Callable[[Progress], None]
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._listen = listen
        self._lock = threading.Lock()
        self._counts = Counts()
        self._rows = 0
        self._loading_since: float | None = None
        self._refills: set[int] = set()
        self._replaced = 0
        self._recent: list[tuple[float, int]] = [(time.monotonic(), 0)]
        self._last = Progress()
        self._done_before = {found.request for found in requests.list_requests(catalog) if found.done_at}
        self._share: float | None = None
        self._stream: StreamProgress | None = None

    def add_epoch(self, counts: Counts) -> None:
        with self._lock:
            self._counts += counts
            self._recent.append((time.monotonic(), self._counts.read))
            edge = time.monotonic() - _RATE_SECONDS
            while len(self._recent) > 2 and self._recent[1][0] < edge:
                self._recent.pop(0)

    def start_loading(self) -> None:
        """This process has the load lease: from now on it alone sends batches."""
        self._loading_since = self._catalog.earliest()

    def add_rows(self, rows: int) -> None:
        with self._lock:
            self._rows += rows

    def set_done_share(self, done: int, total: int) -> None:
        """How much of a source that ends is settled."""
        self._share = done / total if total else 1.0

    def set_stream(self, stream: StreamProgress | None) -> None:
        """The figures that Spark gives for its stream."""
        self._stream = stream

    def report(self) -> None:
        try:
            self._last = self._read()
        except OncehouseError:
            return  # shown again when Kafka and the catalog answer
        self._listen(self._last)

    def result(self) -> RunResult:
        self.report()
        parked = batches.list_batches(self._catalog, statuses=[BatchStatus.PARKED])
        return RunResult(progress=self._last, parked=len(parked), refused=self._list_refused())

    def _list_refused(self) -> tuple[Request, ...]:
        return tuple(
            found
            for found in requests.list_requests(self._catalog)
            if found.is_refused and found.request not in self._done_before
        )

    def _lag(self, topics: KafkaTopics) -> int | None:
        """Unknown until the first epoch has said which partitions there are."""
        # A topic that has left the pipeline file may have left Kafka too, and lags behind nothing.
        known = epochs.read_positions(self._catalog)
        positions = {place: offset for place, offset in known.items() if place[0] in topics.names}
        if not positions:
            return None
        latest = topics.latest(positions)
        return sum(max(0, latest[place] - offset) for place, offset in positions.items())

    def _count_replaced(self) -> int:
        """Rows that this process has loaded, and that a refill has sent again since.

        Counted only after a refill: replaced batches stay in the catalog, and there may be many.
        """
        if self._loading_since is None:
            return 0
        refills = {
            found.request
            for found in requests.list_requests(self._catalog)
            if found.kind is RequestKind.REFILL_TABLE and found.done_at
        }
        if refills != self._refills:
            self._replaced = sum_replaced_rows(self._catalog, loaded_since=self._loading_since)
            self._refills = refills
        return self._replaced

    def _read(self) -> Progress:
        replaced = self._count_replaced()
        lag = None if self._topics is None else self._lag(self._topics)
        waiting = batches.waiting_batches(self._catalog)
        parked = batches.list_batches(self._catalog, statuses=[BatchStatus.PARKED])
        with self._lock:
            first, last = self._recent[0], (time.monotonic(), self._counts.read)
            return Progress(
                read=self._counts.read,
                new=self._counts.new,
                duplicate=self._counts.duplicate,
                rejected=self._counts.dead_letter,
                skipped=self._counts.skipped,
                waiting=self._counts.waiting,
                batches_waiting=len(waiting) + len(parked),
                rows_in_clickhouse=self._rows - replaced,
                lag=lag,
                done_share=self._share,
                events_per_second=(last[1] - first[1]) / max(last[0] - first[0], 0.001),
                stream=self._stream,
            )
