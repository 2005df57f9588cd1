"""What every holder of the ingest lease does, wherever its events come from.

Only the holder decides what is new. Between two epochs it performs requests, and meanwhile it keeps the key index
compact. Events come from `kafka_stream.py`, `external/dataframe_ingest.py` or `external/file_import.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from oncehouse.common import structured_logging
from oncehouse.errors import (
    ConfigurationError,
    CorruptFileError,
    FencedError,
    PermanentError,
    TransientError,
)
from oncehouse.ledger.catalog import rekey, requests
from oncehouse.ledger.catalog.leases import LeasePauses
from oncehouse.ledger.models import Lease, Stage
from oncehouse.pipeline.dedup.index_compaction import compact
from oncehouse.pipeline.ingest.backpressure import BackpressureGate
from oncehouse.pipeline.requests.handler import RequestHandler
from oncehouse.pipeline.spark.job_errors import translated_errors

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.pipeline.requests.rekey import RekeyJob
    from oncehouse.pipeline.stages.supervisor import StageSupervisor

_log = logging.getLogger("oncehouse.pipeline")

_COMPACT_SECONDS = 2.0


class IngestStage(Protocol):
    """A source of epochs as a run sees it."""

    def run(self, stop: threading.Event, *, once: bool) -> None:
        """Settle epochs until `stop` is set, or with `once` until all that was there is settled."""

    def keep_compact(self, stop: threading.Event) -> None:
        """Merge small segments while epochs go on, until `stop` is set. Runs on a thread of its own."""


class IngestLeaseHolder:
    """Holds the ingest lease."""

    def __init__(self, stages: StageSupervisor, lease: Lease | None = None) -> None:
        """`lease`: another than the one that the stages hold for as long as they run."""
        self._stages = stages
        self._spark = stages.spark
        self._catalog = stages.catalog
        self._lease = lease or stages.leases[Stage.INGEST]
        self._on_epoch = stages.reporter.add_epoch
        self._say = stages.say
        self._pauses = LeasePauses(self._catalog, self._lease)
        self._gate = BackpressureGate(stages.pipeline, self._catalog, self._pauses, report=self._say)
        # Held while an epoch is settled or a request performed: only one of them decides what is new.
        self._epoch_lock = threading.Lock()
        # Held while files are replaced or dropped: by merges, requests and retention. Epochs may read meanwhile.
        self._filing = stages.filing
        self._stop = stages.stop
        self._handler = RequestHandler(
            self._spark,
            stages.pipeline,
            self._catalog,
            self._lease.token,
            say=self._say,
            is_over=self._is_over,
        )
        self._changing: RekeyJob | None = None
        self._is_tidy = False

    @property
    def _pipeline(self) -> Pipeline:
        """Under the identity rule that holds."""
        return self._handler.pipeline

    def _take_up_tables(self) -> None:
        """Before an epoch or request: tables that were away at the start may have been seen since."""
        self._handler.set_merging_fields(self._stages.pipeline.merging_fields)

    def _is_over(self) -> bool:
        """Whether nothing is to be waited for any more."""
        return self._stop.is_set()

    def _perform_requests(self) -> None:
        # Looked for before any lock is taken: a merge or a round of retention must not hold up the epochs.
        if not self._handler.has_work():
            return
        with self._epoch_lock, self._filing:
            self._take_up_tables()
            for counts in chain(self._handler.perform(), self._handler.decode_waiting_records()):
                self._on_epoch(counts)

    def keep_compact(self, stop: threading.Event) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", "compact")
        reported, preparing = "", False
        while not stop.wait(0.0 if preparing else _COMPACT_SECONDS):
            try:
                with translated_errors(self._pipeline.pipeline):
                    preparing = not self._handler.rekeys and self._change_rule()
                    with self._filing:
                        compact(self._spark, self._pipeline, self._catalog, self._lease.token)
                reported = ""
            except TransientError as error:
                preparing = False
                if str(error) != reported:
                    self._say(str(error))
                reported = str(error)

    def _change_rule(self) -> bool:
        """Prepare a part of another identity rule while epochs go on, or let it take effect; says whether to go on."""
        request = requests.open_rekey(self._catalog)
        if request is None:
            if self._changing is not None or not self._is_tidy:
                # It was taken back, perhaps before our time.
                rekey.give_up(self._catalog, self._lease.token)
            self._changing, self._is_tidy = None, True
            return False
        if self._changing is None or self._changing.request != request.request:
            # Raises where this process lacks what the rule needs: then it must not go on, and the request stays.
            self._changing = self._handler.begin_rekey(request)
            if self._changing is None:
                return False
            self._say("Preparing the new identity rule while events come in under the old one.")
        try:
            # Named here and not only further out: what a task refuses differs from what may pass.
            with translated_errors(self._pipeline.pipeline):
                return self._prepare_rule(self._changing)
        except (FencedError, TransientError):
            raise
        except (ConfigurationError, PermanentError) as error:
            if self._is_passing(self._changing, error):
                return True
            self._changing = None
            self._handler.refuse_rekey(request, error)
            if not self._handler.has_its_rule:
                raise  # started with a file whose rule the ledger will not get
            return False

    def _prepare_rule(self, changing: RekeyJob) -> bool:
        if not changing.prepare_round():
            return True
        with self._epoch_lock:
            since = time.monotonic()
            # An epoch may have been under way. Where more has come than that, rounds go on: the pause is bounded.
            if not self._handler.finish_rekey(changing, epoch_events=self._pipeline.epoch.max_rows):
                return True
            self._on_rule_changed()
            paused = round(time.monotonic() - since, 3)
        self._changing = None
        structured_logging.write(
            _log, logging.INFO, "identity rule changed", request=changing.request, pause_seconds=paused
        )
        return False

    def _on_rule_changed(self) -> None:
        """Called before the next epoch, for a stage that has to restart under another rule."""

    def _is_passing(self, changing: RekeyJob, error: Exception) -> bool:
        """Whether the request was withdrawn, or retention dropped key files while they were read."""
        now = requests.open_rekey(self._catalog)
        if now is None or now.request != changing.request:
            return True
        return isinstance(error, CorruptFileError) and changing.lost_files()
