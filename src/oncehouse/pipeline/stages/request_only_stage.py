"""The ingest of a run whose epochs come from elsewhere: DataFrames and imports write them in their own processes.

While one of those is open it performs the requests itself. While none is, this takes the ingest lease for as long
as a request needs it, and gives it back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from oncehouse.errors import LeaseHeldError, TransientError
from oncehouse.ledger.catalog import leases, requests
from oncehouse.ledger.lease_holder import describe_holder
from oncehouse.ledger.models import Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.take_lease import require_current, take_lease
from oncehouse.pipeline.stages.ingest_stage import IngestLeaseHolder

if TYPE_CHECKING:
    from oncehouse.pipeline.stages.supervisor import StageSupervisor

_CHECK_SECONDS = 1.0


class RequestOnlyStage:
    def __init__(self, stages: StageSupervisor) -> None:
        self._stages = stages

    def run(self, stop: threading.Event, *, once: bool) -> None:
        reported = ""
        while not stop.is_set():
            try:
                if requests.open_requests(self._stages.catalog):
                    self._perform(stop)
                reported = ""
            except (LeaseHeldError, TransientError) as error:
                if once:
                    raise
                if str(error) != reported and isinstance(error, TransientError):
                    self._stages.say(str(error))
                reported = str(error)
            if once:
                return
            stop.wait(_CHECK_SECONDS)

    def keep_compact(self, stop: threading.Event) -> None:
        """The process that writes epochs merges segments."""

    def _perform(self, stop: threading.Event) -> None:
        stages = self._stages
        lease = take_lease(stages.pipeline, stages.catalog, Stage.INGEST, describe_holder())
        lost: list[Exception] = []
        heartbeat = leases.Heartbeat(
            stages.catalog,
            (lease,),
            lease_seconds=stages.pipeline.lease,
            on_lost=lost.append,
            on_resumed=lambda: require_current(stages.catalog, FileStore(stages.pipeline.ledger.files)),
        )
        try:
            _Requests(stages, lease).perform()
        finally:
            heartbeat.stop()
            leases.release(stages.catalog, lease)
        if lost and not stop.is_set():
            raise lost[0]


class _Requests(IngestLeaseHolder):
    def perform(self) -> None:
        self._perform_requests()
