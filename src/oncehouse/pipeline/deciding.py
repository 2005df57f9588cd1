"""What every holder of the ingest lease does, wherever its events come from.

Only the holder decides what is new. Between two epochs it performs what people have asked for, and beside them it
keeps the key index compact. Where events come from is the business of `stream.py` (Kafka), `frames.py` (somebody's
DataFrames) and `importing.py` (files).
"""

from __future__ import annotations

import threading
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from oncehouse.errors import TransientError
from oncehouse.ledger.records import Lease, Stage
from oncehouse.pipeline.compact import compact
from oncehouse.pipeline.job_errors import naming_own_errors
from oncehouse.pipeline.pausing import Gate
from oncehouse.pipeline.perform import Performer

if TYPE_CHECKING:
    from oncehouse.pipeline.stages import Stages

_COMPACT_SECONDS = 2.0


class Ingesting(Protocol):
    """A source of epochs as a run sees it."""

    def run(self, stop: threading.Event, *, once: bool) -> None:
        """Settle epochs until `stop` is set, or with `once` until all that was there is settled."""

    def keep_compact(self, stop: threading.Event) -> None:
        """Merge small segments beside the epochs, until `stop` is set. Runs on a thread of its own."""


class Deciding:
    """Holds the ingest lease."""

    def __init__(self, stages: Stages, lease: Lease | None = None) -> None:
        """`lease`: another than the one that the stages hold for as long as they run."""
        self._spark = stages.spark
        self._pipeline = stages.pipeline
        self._catalog = stages.catalog
        self._lease = lease or stages.leases[Stage.INGEST]
        self._on_epoch = stages.report.add_epoch
        self._say = stages.say
        self._gate = Gate(self._pipeline, self._catalog, self._lease, say=self._say)
        # Held while an epoch is settled or a request performed: only one of them decides what is new.
        self._deciding = threading.Lock()
        # Held by whoever replaces or drops files: merges, requests and retention. Epochs may read meanwhile.
        self._filing = stages.filing
        self._performer = Performer(
            self._spark, self._pipeline, self._catalog, self._lease.token, say=self._say
        )

    def _perform_requests(self) -> None:
        # Looked for before any lock is taken: a merge or a round of retention must not hold up the epochs.
        if not self._performer.is_asked():
            return
        with self._deciding, self._filing:
            for counts in chain(self._performer.perform(), self._performer.decode_waiting()):
                self._on_epoch(counts)

    def keep_compact(self, stop: threading.Event) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", "compact")
        told = ""
        while not stop.wait(_COMPACT_SECONDS):
            try:
                with self._filing, naming_own_errors(self._pipeline.pipeline):
                    compact(self._spark, self._pipeline, self._catalog, self._lease.token)
                told = ""
            except TransientError as error:
                if str(error) != told:
                    self._say(str(error))
                told = str(error)
