"""Performs requests of users, in the process that holds the ingest lease, between two epochs.

Each request ends with a result in the catalog, also when it is refused: a request that cannot be met must
neither stop the pipeline nor come back for ever.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, assert_never

from oncehouse.clickhouse.batch_rows import count_by_batch
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.errors import ConfigurationError, FencedError, PermanentError, TransientError
from oncehouse.ledger.catalog import batches, epochs, rekey, requests
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.requests import rekey_target
from oncehouse.ledger.models import (
    REFUSED,
    BatchStatus,
    Counts,
    DeadLetterFile,
    DeadLetterKind,
    EpochKind,
    Request,
    RequestKind,
)
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dead_letters.filter import Selection
from oncehouse.pipeline.dead_letters.reader import may_hold
from oncehouse.pipeline.dedup.index_compaction import rebuild
from oncehouse.pipeline.ingest.epoch import EpochInput, settle
from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.load.parked_inserts import end_parked_inserts
from oncehouse.pipeline.requests.dead_letter_replay import ReplayPlan, group_files, replay, split_for_epochs
from oncehouse.pipeline.requests.rekey import RekeyJob
from oncehouse.pipeline.requests.schema_wait import WaitingRecords
from oncehouse.pipeline.requests.table_refill import gone_batches, refill
from oncehouse.pipeline.schema.identity_guard import refuse_start, under_ledgers_rule, under_requested_rule
from oncehouse.pipeline.spark.job_errors import translated_errors
from oncehouse.pipeline.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline


# How often the catalog is asked what became of a change, while it is away.
_RETRY_SECONDS = 1.0

# A request that keeps failing for passing reasons is refused in the end, so that an operator sees it.
_MOST_TRIES = 20

_NOTHING = Counts()


class RequestHandler:
    """Performs requests for one holder of the ingest lease, and remembers how often each has failed."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        catalog: Catalog,
        token: int,
        *,
        say: Callable[[str], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_over`: whether the process is to end, and should wait for nothing any more."""
        self.pipeline = under_ledgers_rule(pipeline, catalog) or pipeline
        """Under the rule that holds; it changes when the ledger's does."""
        self.rekeys = True
        """Whether a change of the identity rule is performed here too; otherwise a thread does it during epochs."""
        self._spark = spark
        self._file = pipeline
        self._catalog = catalog
        self._token = token
        self._say = say
        self._is_over = is_over
        self._tries: Counter[int] = Counter()
        self._waiting = WaitingRecords(catalog)

    def set_merging_fields(self, found: Sequence[tuple[str, str]]) -> None:
        if tuple(found) != self.pipeline.merging_fields:
            self.pipeline = self.pipeline.with_merging_fields(found)

    def perform(self) -> Iterator[Counts]:
        """Perform all open requests in order; yields the counts of epochs that they made."""
        # First of all: under another rule than the ledger's nothing can be settled.
        listed = self._list_requests()
        for request in listed:
            if request.kind is RequestKind.REKEY:
                self._rekey(request)
        for request in self._list_requests() if listed else ():
            if self._is_over():
                return
            yield from self._attempt(request)

    def _attempt(self, request: Request) -> Iterator[Counts]:
        self._tries[request.request] += 1
        if self._tries[request.request] == 1:
            self._say(f"Performing request {request.request}: {request.kind}.")
        try:
            with translated_errors(self.pipeline.pipeline):
                yield from self._perform(request)
        except FencedError:
            raise
        except TransientError as error:
            # It stays open and is tried again; the epochs go on meanwhile.
            if self._tries[request.request] == 1:
                self._say(f"Request {request.request} waits: {error}")
            if self._tries[request.request] >= _MOST_TRIES:
                self._refuse(request, error)
        except (ConfigurationError, PermanentError) as error:
            self._refuse(request, error)

    def _perform(self, request: Request) -> Iterator[Counts]:
        given = (self._spark, self.pipeline, self._catalog, self._token)
        match request.kind:
            case RequestKind.REPLAY_DEAD_LETTERS:
                yield from _replay(*given, request, self._is_over)
            case RequestKind.EDIT_DEAD_LETTERS:
                yield from _edit(*given, request)
            case RequestKind.REFILL_TABLE:
                _refill(*given, request)
            case RequestKind.REBUILD_INDEX:
                rebuild(*given, request=request.request)
            case RequestKind.REKEY:
                raise PermanentError("a change of the identity rule is performed before all other requests")
            case _:
                assert_never(request.kind)

    def has_work(self) -> bool:
        """Whether there is anything to perform; cheap, and looked at without any lock."""
        return bool(self._list_requests()) or self._waiting.has_due(self.pipeline)

    def _list_requests(self) -> list[Request]:
        found = requests.open_requests(self._catalog)
        return [request for request in found if self.rekeys or request.kind is not RequestKind.REKEY]

    def decode_waiting_records(self) -> Iterator[Counts]:
        """Decode what has waited for schemas that are known by now, and what has waited for too long a last time."""
        for due in self._waiting.list_due(self.pipeline):
            for taken in split_for_epochs(due.files, most_rows=self.pipeline.epoch.max_rows):
                if self._is_over():
                    return
                with translated_errors(self.pipeline.pipeline):
                    yield _replay_files(
                        self._spark,
                        self.pipeline,
                        self._catalog,
                        self._token,
                        taken,
                        due.selection,
                        expired=due.expired,
                    )

    def _rekey(self, request: Request) -> None:
        """Raises what hinders it: no epoch may be settled before the ledger has the pipeline's rule."""
        changing = self.begin_rekey(request)
        if changing is None:
            return
        self._say("Changing the ledger to the new identity rule; events wait meanwhile.")
        try:
            with translated_errors(self.pipeline.pipeline):
                self.finish_rekey(changing)
        except FencedError:
            raise
        except (ConfigurationError, PermanentError) as error:
            self.refuse_rekey(request, error)
            raise

    def begin_rekey(self, request: Request) -> RekeyJob | None:
        """None: the ledger has that rule already. Raises where this pipeline file does not say what the rule means."""
        wanted = under_requested_rule(self._file, self._catalog, request)
        if wanted is None:
            raise refuse_start(self.pipeline.pipeline)
        rekey.give_up(self._catalog, self._token, keep=request.request)
        if rekey_target(request) == self._catalog.identity():
            requests.finish_request(
                self._catalog, self._token, request.request, "the ledger has this rule already"
            )
            return None
        changing = RekeyJob(self._spark, wanted, self._catalog, self._token, request=request.request)
        changing.forget_lost()
        return changing

    def finish_rekey(self, changing: RekeyJob, *, epoch_events: int | None = None) -> bool:
        """No epoch may be settled meanwhile; from then on they have the new rule. False: it is too early for it."""
        try:
            done = changing.finish(epoch_events=epoch_events)
        except TransientError as error:
            if not self._has_changed(changing):
                raise
            done = f"it took effect, though the answer was lost ({error})"
        if done is None:
            return False
        self.pipeline = changing.pipeline
        self._say(f"The ledger has the new identity rule: {done}.")
        return True

    def _has_changed(self, changing: RekeyJob) -> bool:
        """What became of a change whose answer is missing: under the wrong rule nothing can be settled."""
        while True:
            try:
                return rekey.has_changed(self._catalog, self._token, changing.identity)
            except TransientError:
                if self._is_over():
                    raise
                time.sleep(_RETRY_SECONDS)

    def refuse_rekey(self, request: Request, error: Exception) -> None:
        self._refuse(request, error)
        rekey.give_up(self._catalog, self._token)

    @property
    def has_its_rule(self) -> bool:
        """Whether the rule that holds is the one of the pipeline file."""
        return self.pipeline.identity == self._file.identity

    def _refuse(self, request: Request, error: Exception) -> None:
        self._say(f"Request {request.request} was refused: {error}")
        requests.finish_request(self._catalog, self._token, request.request, f"{REFUSED}{error}")


def _replay(
    spark: SparkSession,
    pipeline: Pipeline,
    catalog: Catalog,
    token: int,
    request: Request,
    is_over: Callable[[], bool],
) -> Iterator[Counts]:
    """In several epochs, the last of which ends the request. If none comes to that, it is taken up again.

    Then dead letters that failed once more are tried with those that are left, and the result counts these alone.
    """
    selection = Selection.from_arguments(request.arguments)
    store = FileStore(pipeline.ledger.files)
    dead_letters = [
        found
        for found in epochs.list_dead_letter_files(catalog)
        if selection.may_count(found.reasons) and may_hold(store, found.file, selection)
    ]
    if not dead_letters:
        requests.finish_request(catalog, token, request.request, "there are no dead letters to try again")
        return
    *earlier, last = split_for_epochs(dead_letters, most_rows=pipeline.epoch.max_rows)
    done = Counts()
    for taken in earlier:
        if is_over():
            return
        counts = _replay_files(spark, pipeline, catalog, token, taken, selection)
        done += counts
        yield counts
    if not is_over():
        yield _replay_files(
            spark, pipeline, catalog, token, last, selection, request=request.request, done=done
        )


def _edit(
    spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, request: Request
) -> Iterator[Counts]:
    group = f"{request.arguments['edits']}-"
    edits = [
        found
        for found in epochs.list_dead_letter_files(catalog, kind=DeadLetterKind.EDIT)
        if found.dead_letter_file.startswith(group)
    ]
    dead_letters = epochs.list_dead_letter_files(catalog)
    holding = {name for found in edits for name in found.reasons}
    if holding <= {found.dead_letter_file for found in dead_letters}:
        # Nothing has moved the dead letters since they were edited; otherwise they may be in any file.
        dead_letters = tuple(found for found in dead_letters if found.dead_letter_file in holding)
    if not edits or not dead_letters:
        requests.finish_request(
            catalog, token, request.request, "the edited letters are no dead letters any more"
        )
        return
    yield _replay_files(
        spark, pipeline, catalog, token, dead_letters, Selection(), request=request.request, edits=edits
    )


def _replay_files(
    spark: SparkSession,
    pipeline: Pipeline,
    catalog: Catalog,
    token: int,
    dead_letters: Sequence[DeadLetterFile],
    selection: Selection,
    *,
    request: int | None = None,
    done: Counts = _NOTHING,
    edits: Sequence[DeadLetterFile] = (),
    expired: bool = False,
) -> Counts:
    """An epoch over dead letters of one kind. `done`: what epochs before made of the same request."""
    kind = dead_letters[0].kind

    def read(plan: ReadPlan) -> list[TaskManifest]:
        tasks = [
            ReplayPlan(
                read=plan,
                attempt=f"l{uuid.uuid4().hex[:12]}",
                files=files,
                selection=selection,
                kind=kind,
                edits=tuple(found.file for found in edits),
                expired=expired,
            )
            for files in group_files(dead_letters, rows=plan.part_rows, size_bytes=plan.part_bytes)
        ]
        return run_tasks(spark, replay, tasks)

    given = EpochInput(
        kind=EpochKind.WAITING if kind is DeadLetterKind.WAITING else EpochKind.REPLAY,
        topic_ids={},
        tried_dead_letter_files=tuple(found.dead_letter_file for found in (*dead_letters, *edits)),
        request=request,
        request_counts=done,
    )
    return settle(spark, pipeline, catalog, token, read, given, small=False)


def _refill(spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, request: Request) -> None:
    name = str(request.arguments["table"])
    table = next((found for found in pipeline.tables if found.name == name), None)
    if table is None:
        raise ConfigurationError(f"the pipeline file has no table {name!r}; add it under tables first")
    # Listed before the rows are counted: a batch loaded in between is then not taken for one that is gone.
    candidates = batches.list_batches(
        catalog, statuses=[BatchStatus.IN_CLICKHOUSE, BatchStatus.PARKED], table=name
    )
    client = connect(pipeline.clickhouse)
    end_parked_inserts(client, pipeline, catalog, candidates)
    counts = count_by_batch(client, table.name, table.batch_column)
    facts = describe_table(client, table.name)
    if counts and facts is not None and facts.loses_rows:
        raise ConfigurationError(
            f"{name} drops rows by itself (engine {facts.engine}, or a TTL), so what it lacks cannot be "
            "distinguished from what it dropped. Truncate it first, or fill a new table."
        )
    refill(
        spark,
        pipeline,
        catalog,
        token,
        table=name,
        gone=gone_batches(candidates, counts),
        request=request.request,
    )
