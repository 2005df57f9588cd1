"""What people have asked for, performed by the holder of the ingest lease between two epochs.

Each request ends with a result in the catalog, also when it is refused: a request that cannot be met must
neither stop the pipeline nor come back for ever.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, assert_never

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.counting import count_by_batch
from oncehouse.clickhouse.describe import describe_table
from oncehouse.errors import ConfigurationError, FencedError, PermanentError
from oncehouse.ledger import epochs, requests
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.records import Counts, EpochKind, Request, RequestKind
from oncehouse.pipeline.compact import rebuild
from oncehouse.pipeline.ingest import EpochInput, run_tasks, settle
from oncehouse.pipeline.job_errors import naming_own_errors
from oncehouse.pipeline.letters import ReplayPlan, Selection, replay
from oncehouse.pipeline.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.refill import refill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config import Pipeline


def perform_requests(
    spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, *, say: Callable[[str], None]
) -> Iterator[Counts]:
    """Perform all open requests in order; yields the counts of epochs that they made."""
    for request in requests.open_requests(catalog):
        say(f"Performing request {request.request}: {request.kind}.")
        try:
            with naming_own_errors(pipeline.pipeline):
                yield from _perform(spark, pipeline, catalog, token, request)
        except FencedError:
            raise
        except (ConfigurationError, PermanentError) as error:
            say(f"Request {request.request} was refused: {error}")
            requests.finish_request(catalog, token, request.request, f"refused: {error}")


def _perform(
    spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, request: Request
) -> Iterator[Counts]:
    match request.kind:
        case RequestKind.REPLAY_DEAD_LETTERS:
            yield from _replay(spark, pipeline, catalog, token, request)
        case RequestKind.REFILL_TABLE:
            _refill(spark, pipeline, catalog, token, request)
        case RequestKind.REBUILD_INDEX:
            rebuild(spark, pipeline, catalog, token, request=request.request)
        case _:
            assert_never(request.kind)


def _replay(
    spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, request: Request
) -> Iterator[Counts]:
    letters = epochs.list_dead_letter_files(catalog)
    if not letters:
        requests.finish_request(catalog, token, request.request, "there are no dead letters")
        return
    selection = Selection.from_arguments(request.arguments)

    def read(plan: ReadPlan) -> list[TaskManifest]:
        task = ReplayPlan(
            read=plan,
            attempt=f"l{uuid.uuid4().hex[:12]}",
            files=tuple(found.file for found in letters),
            selection=selection,
        )
        return run_tasks(spark, replay, [task])

    given = EpochInput(
        kind=EpochKind.REPLAY,
        topic_ids={},
        tried_dead_letter_files=tuple(found.dead_letter_file for found in letters),
        request=request.request,
    )
    yield settle(spark, pipeline, catalog, token, read, given, small=False)


def _refill(spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, request: Request) -> None:
    name = str(request.arguments["table"])
    table = next((found for found in pipeline.tables if found.name == name), None)
    if table is None:
        raise ConfigurationError(f"the pipeline file has no table {name!r}; add it under tables first")
    client = connect(pipeline.clickhouse)
    counts = count_by_batch(client, table.name, table.batch_column)
    facts = describe_table(client, table.name)
    if counts and facts is not None and facts.loses_rows:
        raise ConfigurationError(
            f"{name} drops rows by itself (engine {facts.engine}, or a TTL), so what it lacks cannot be told from what "
            "it dropped. Truncate it first, or fill a new table."
        )
    refill(spark, pipeline, catalog, token, table=name, rows_by_batch=counts, request=request.request)
