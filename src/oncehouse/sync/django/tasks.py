"""Celery tasks under the names that users of django-clickhouse know.

Let beat start `oncehouse.sync.django.tasks.clickhouse_auto_sync` every second or two: it starts `sync_clickhouse_model`
for each sync that is due, in the queue that the sync names. A task that is lost, doubled or late does no harm:
operations wait, and the lease lets one run of a sync work at a time.
"""

from __future__ import annotations

from celery import shared_task

from oncehouse.sync.discovery import select_syncs
from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.model.model_sync import registered_syncs

__all__ = ["clickhouse_auto_sync", "sync_clickhouse_model"]


@shared_task(ignore_result=True)
def sync_clickhouse_model(name: str) -> None:
    """Rounds of one sync until nothing of it waits."""
    [sync] = select_syncs(_ours(), [name])
    sync.sync_batch_from_storage()


@shared_task(ignore_result=True)
def clickhouse_auto_sync() -> None:
    """Start what is due; a sync whose state is unknown waits for the next time."""
    failures: list[Exception] = []
    for sync in _ours():
        try:
            if sync.need_sync():
                declared = sync.declaration()
                sync_clickhouse_model.apply_async((declared.name,), queue=declared.queue)
        except Exception as error:  # noqa: BLE001 - one sync's trouble must not keep the others from being started
            failures.append(error)
    if failures:
        raise failures[0]


def _ours() -> list[type[ModelSync]]:
    return [sync for sync in registered_syncs() if issubclass(sync, ModelSync)]
