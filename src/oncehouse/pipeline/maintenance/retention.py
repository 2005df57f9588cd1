"""Retention: what is past the window goes, when it is loaded; what nothing names is swept.

The window is a minimum promise, counted from when an event was first seen on the catalog's clock; no event's
own time has any part in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.common import failpoints
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import epochs, packs, retention, rollup, snapshots
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.maintenance.file_packs import pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline

_EPOCH_FILE = re.compile(r"/(\d{10})-(\d+)-[^/]+$")
_INDEX_FILE = re.compile(r"/index/(?:merged|rebuilt|rekeyed|adopted)-(\d+)-[^/]+$")
_LOOKUP_FILE = re.compile(r"/lookups/(\d+)-[^/]+$")
_PACK_FILE = re.compile(r"/packs/(\d+)-[^/]+$")
_EDIT_FILE = re.compile(r"/edits/(\d+)-[^/]+$")
# What is left of a mark that a killed process was writing.
_HALF_MARK = re.compile(r"/marks/\.[^/]+-(\d+)-[0-9a-f]{32}$")
# Edits are named by the catalog as soon as they are written, marks by their own names; none takes longer than this.
_WRITING_SECONDS = 86_400.0
# How long a file that was packed stays for those who had found it before.
_GARBAGE_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class RetentionResult:
    segments: int
    files: int
    orphans: int


def plan_sweep(
    files: Iterable[str],
    registered: set[str],
    *,
    token: int,
    last_epoch: int,
    retention_token: int = 0,
    now: float = 0.0,
) -> tuple[str, ...]:
    """Files that no writer can still register: unnamed ones of older tokens or of epochs already settled."""
    return tuple(
        path
        for path in files
        if path not in registered and _is_over(path, token, last_epoch, retention_token, now)
    )


def _is_over(path: str, token: int, last_epoch: int, retention_token: int, now: float) -> bool:
    if found := _EPOCH_FILE.search(path):
        return int(found[2]) < token or int(found[1]) <= last_epoch
    if found := _INDEX_FILE.search(path) or _LOOKUP_FILE.search(path):
        return int(found[1]) < token
    if found := _PACK_FILE.search(path):
        return int(found[1]) < retention_token
    if found := _EDIT_FILE.search(path) or _HALF_MARK.search(path):
        return int(found[1]) < now - _WRITING_SECONDS
    return False


def retain(
    pipeline: Pipeline,
    catalog: Catalog,
    *,
    token: int,
    ingest_token: int,
    spark: SparkSession | None = None,
    garbage_seconds: float = _GARBAGE_SECONDS,
    sweeping: bool = True,
) -> RetentionResult:
    """One round: drop what is past the window; when `sweeping`, also pack what is small (with Spark) and sweep."""
    store = FileStore(pipeline.ledger.files)
    before = catalog.earliest() - pipeline.identity.window
    expired = retention.expire_segments(catalog, token, before=before)
    paths = [
        *retention.drop_replaced_segments(catalog, token),
        *retention.drop_key_files(catalog, token, before=before),
        *retention.drop_tried_dead_letters(catalog, token, before=before),
    ]
    rollup.roll_up_epochs(catalog, token, before=before)
    rollup.roll_up_batches(catalog, token, before=before)
    kept_up = not (paths or sweeping) or _take_snapshot(catalog, store)
    failpoints.reach("before deleting files")
    # Only a pack may hold rows of others, so only then all names have to be looked at.
    shared = any(packs.is_pack(path) for path in paths)
    still_named = retention.registered_paths(catalog) if shared else set()
    gone = [path for path in paths if path not in still_named]
    for path in gone:
        store.delete(path)
        failpoints.reach("after deleting a file")
    if not kept_up:
        _take_snapshot(catalog, store)
    if not sweeping:
        return RetentionResult(segments=expired, files=len(gone), orphans=0)
    if spark is not None and pack(spark, pipeline, catalog, token):
        _take_snapshot(catalog, store)  # the one before names files that are garbage now
    old = packs.old_garbage(catalog, before=catalog.earliest() - garbage_seconds)
    for path in old:
        store.delete(path)
    packs.forget_garbage(catalog, token, old)
    orphans = sweep(pipeline, catalog, store, token=ingest_token, retention_token=token)
    return RetentionResult(segments=expired, files=len(gone) + len(old), orphans=orphans)


def _take_snapshot(catalog: Catalog, store: FileStore) -> bool:
    """Before files go, so that none goes that the newest snapshot names; False if the disk has no space for it."""
    if epochs.next_epoch(catalog) == 1:
        return True  # nothing has been settled that could be lost
    try:
        snapshots.write_snapshot(catalog, store)
    except TransientError:
        return False  # what is deleted now may free the space
    return True


def sweep(pipeline: Pipeline, catalog: Catalog, store: FileStore, *, token: int, retention_token: int) -> int:
    # Listed before the catalog is asked: a file registered in between is then seen as registered.
    files = list(store.walk(f"{pipeline.pipeline}/"))
    last_epoch = epochs.next_epoch(catalog) - 1
    named = retention.registered_paths(catalog) | packs.kept_garbage(catalog)
    orphans = plan_sweep(
        files,
        named,
        token=token,
        last_epoch=last_epoch,
        retention_token=retention_token,
        now=catalog.earliest(),
    )
    for path in orphans:
        store.delete(path)
        failpoints.reach("after sweeping a file")
    return len(orphans)
