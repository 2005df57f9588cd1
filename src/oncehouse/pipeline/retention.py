"""Retention: what is past the window goes, when it is loaded; what nothing names is swept.

The window is a minimum promise, counted from when an event was first seen on the catalog's clock; no event's
own time has any part in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse import crash
from oncehouse.ledger import epochs, expiry
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.files import FileStore

if TYPE_CHECKING:
    from oncehouse.config import Pipeline

_EPOCH_FILE = re.compile(r"/(\d{10})-(\d+)-[^/]+$")
_INDEX_FILE = re.compile(r"/index/(?:merged|rebuilt)-(\d+)-[^/]+$")


@dataclass(frozen=True, kw_only=True)
class Swept:
    segments: int
    files: int
    orphans: int


def plan_sweep(files: Iterable[str], registered: set[str], *, token: int, last_epoch: int) -> tuple[str, ...]:
    """Files that no writer can still register: unnamed ones of older tokens or of epochs already settled."""
    orphans = []
    for path in files:
        if path in registered:
            continue
        if found := _EPOCH_FILE.search(path):
            if int(found[2]) < token or int(found[1]) <= last_epoch:
                orphans.append(path)
        elif (found := _INDEX_FILE.search(path)) and int(found[1]) < token:
            orphans.append(path)
    return tuple(orphans)


def retain(pipeline: Pipeline, catalog: Catalog, *, token: int, ingest_token: int) -> Swept:
    """One round: drop what is past the window, then sweep."""
    store = FileStore(pipeline.ledger.files)
    before = catalog.now() - pipeline.identity.window
    expired = expiry.expire_segments(catalog, token, before=before)
    paths = [
        *expiry.drop_replaced_segments(catalog, token),
        *expiry.drop_key_files(catalog, token, before=before),
        *expiry.drop_tried_letters(catalog, token, before=before),
    ]
    crash.reach("before deleting files")
    still_named = expiry.registered_paths(catalog)
    gone = [path for path in paths if path not in still_named]
    for path in gone:
        store.delete(path)
    orphans = sweep(pipeline, catalog, store, token=ingest_token)
    return Swept(segments=expired, files=len(gone), orphans=orphans)


def sweep(pipeline: Pipeline, catalog: Catalog, store: FileStore, *, token: int) -> int:
    # Listed before the catalog is asked: a file registered in between is then seen as registered.
    files = list(store.walk(f"{pipeline.pipeline}/"))
    last_epoch = epochs.next_epoch(catalog) - 1
    orphans = plan_sweep(files, expiry.registered_paths(catalog), token=token, last_epoch=last_epoch)
    for path in orphans:
        store.delete(path)
    return len(orphans)
