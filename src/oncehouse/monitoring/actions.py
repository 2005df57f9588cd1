"""The actions of users, at the command line and in the dashboard: one function for each.

Each checks its arguments, changes one thing in one transaction and returns what it did; it raises ConfigurationError,
and changes nothing, if the action is impossible. Work that only the holder of the ingest lease may do becomes a request
in the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from oncehouse.config.problems import nearest
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import RequestKind

if TYPE_CHECKING:
    from oncehouse.clickhouse.view_rebuild import ViewRebuild
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.etl.open import Etl
    from oncehouse.etl.state.models import Offset
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import LedgerBatch
    from oncehouse.messaging.inbox.open import InboxDatabase
    from oncehouse.messaging.outbox.open import OpenedOutbox
    from oncehouse.messaging.outbox.parked import ParkedChange
    from oncehouse.pipeline.dead_letters.filter import Selection


def retry_batch(catalog: Catalog, batch_id: str) -> LedgerBatch:
    """Let a parked batch be tried again: by a running pipeline at once, else by the next run."""
    from oncehouse.ledger.catalog.batches import find_batch, retry_parked

    retry_parked(catalog, batch_id)
    return find_batch(catalog, batch_id)


def list_unproven(catalog: Catalog) -> tuple[LedgerBatch, ...]:
    """Loaded batches of which nothing shows that materialized views have their rows."""
    from oncehouse.ledger.catalog.batches import unproven_batches

    return unproven_batches(catalog)


def settle_views(catalog: Catalog, batch_ids: Collection[str]) -> tuple[LedgerBatch, ...]:
    """The views of these batches were rebuilt, or found right; batches that became unproven since stay so."""
    from oncehouse.ledger.catalog import batches

    found = tuple(batch for batch in batches.unproven_batches(catalog) if batch.batch_id in batch_ids)
    unknown = sorted(set(batch_ids) - {batch.batch_id for batch in found})
    if unknown:
        raise ConfigurationError(
            f"Not among the batches whose views are unproven: {', '.join(unknown)}. Nothing was changed; "
            "`oncehouse batches views` lists them."
        )
    batches.settle_views(catalog, batch_ids)
    return found


def plan_view_rebuilds(pipeline: Pipeline, tables: Collection[str]) -> dict[str, tuple[ViewRebuild, ...]]:
    """By table, how each of its materialized views is rebuilt from it."""
    from oncehouse.clickhouse.client import connect
    from oncehouse.clickhouse.table_info import describe_table
    from oncehouse.clickhouse.view_rebuild import plan_rebuilds

    client = connect(pipeline.clickhouse)
    described = {table: describe_table(client, table) for table in sorted(tables)}
    return {table: plan_rebuilds(client, facts) for table, facts in described.items() if facts is not None}


def request_replay(catalog: Catalog, selection: Selection) -> int:
    """Have dead letters decoded again; returns the number of the request."""
    from oncehouse.ledger.catalog.requests import add_request

    counts = count_dead_letters(catalog)
    if not counts:
        raise ConfigurationError("There are no dead letters to try again.")
    require_reason(selection.reason, counts)
    return add_request(catalog, RequestKind.REPLAY_DEAD_LETTERS, selection.to_arguments())


def count_dead_letters(catalog: Catalog) -> dict[str, int]:
    """Dead letters that were not tried again, by reason, the most frequent first."""
    from oncehouse.ledger.catalog.dead_letters import count_reasons

    counts = count_reasons(catalog)
    return dict(sorted(counts.items(), key=lambda found: (-found[1], found[0])))


def require_reason(reason: str | None, counts: Mapping[str, int]) -> None:
    """A reason that no dead letter has is most likely misspelt."""
    if reason is None or not counts or reason in counts:
        return
    raise ConfigurationError(f"No dead letter has the reason {reason!r}; {_guess(reason, counts)}")


def require_table(pipeline: Pipeline, table: str) -> None:
    """A table that the pipeline file does not name is most likely misspelt."""
    names = [declared.name for declared in pipeline.tables]
    if table not in names:
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline} has no table {table!r} in tables; {_guess(table, names)}"
        )


def _guess(given: str, known: Collection[str]) -> str:
    hint = nearest(given, known)
    return f"did you mean {hint!r}?" if hint else f"there are: {', '.join(known)}"


def request_refill(pipeline: Pipeline, catalog: Catalog, table: str) -> int:
    """Have a table filled again from the ledger; returns the number of the request."""
    from oncehouse.ledger.catalog.requests import add_request

    require_table(pipeline, table)
    return add_request(catalog, RequestKind.REFILL_TABLE, {"table": table})


def pause_topic(etl: Etl, name: str) -> Offset:
    """Begin no further step of the topic; one that is under way is brought to its end."""
    from oncehouse.etl.state import transitions

    return transitions.pause(etl.store, _topic(etl, name), lease_seconds=etl.settings.lease)


def resume_topic(etl: Etl, name: str) -> Offset:
    """Let a paused topic go on, or one that late rows have stopped: they are let pass."""
    from oncehouse.etl.state import transitions

    return transitions.resume(etl.store, _topic(etl, name))


def unlock_topic(etl: Etl, name: str) -> Offset:
    """Release the lease of the topic. Its open range stays, and runs again unchanged."""
    from oncehouse.etl.state import transitions

    return transitions.unlock(etl.store, _topic(etl, name))


def _topic(etl: Etl, name: str) -> str:
    from oncehouse.etl.open import find_topic, read_offsets

    found = find_topic(etl, name)
    read_offsets(etl)  # its error says what to do when there is no table yet
    return found.topic


def retry_message(outbox: OpenedOutbox, message_id: UUID) -> ParkedChange:
    """Let a parked message of an outbox be sent again, with what waits behind it."""
    from oncehouse.messaging.outbox.parked import ParkedSelection

    return outbox.retry(ParkedSelection(ids=[message_id]))


def retry_inbox(opened: InboxDatabase, name: str, ids: Sequence[str] | None = None) -> list[str]:
    """Let parked and failing messages of a stored inbox be tried again at once; all of them where no ids are given."""
    from oncehouse.messaging.inbox.admin import retry_entries

    with opened.transact("retrying messages") as connection:
        return retry_entries(connection, name, ids)
