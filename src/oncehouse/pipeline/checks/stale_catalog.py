"""Whether the catalog is as new as the files of its ledger: one that was lost or restored from an old backup is not.

Marks say how far it had come when rows were last sent. Files carry epoch and fencing token in their names too: a file
of an epoch that the catalog has not come to, under a token that is not older than the catalog's, was written after the
catalog's moment. To go on from such a catalog would send again what ClickHouse has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oncehouse.errors import CatalogBehindError, CorruptFileError
from oncehouse.ledger.catalog import epochs, leases
from oncehouse.ledger.catalog.snapshots import examine, list_snapshots
from oncehouse.ledger.marks import describe_ahead_of_sound, list_marks, read_marks
from oncehouse.ledger.models import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.storage.file_store import FileStore

_EPOCH_FILE = re.compile(r"/\d{7}/(\d{10})-(\d+)-[^/]+$")
_EPOCHS_A_FOLDER = 1000


def find_newer(paths: Iterable[str], *, next_epoch: int, token: int) -> str | None:
    """A file that was written after the catalog's moment. Pure.

    Files of the next epoch itself may be those of an attempt that died, unless a newer holder of the lease wrote them:
    whether it was settled and sent, the marks say.
    """
    for path in paths:
        if (found := _EPOCH_FILE.search(f"/{path}")) is None:
            continue
        epoch, of_file = int(found[1]), int(found[2])
        if of_file > token or (epoch > next_epoch and of_file == token):
            return path
    return None


def describe_age(catalog: Catalog, store: FileStore) -> str | None:
    """Why the catalog is not the one that the files belong to; None where it is, as far as sound marks say.

    Raises TransientError where it is one that a standby has not brought so far yet.
    """
    age = _describe_age(catalog, store)
    if age is not None:
        catalog.require_primary()
    return age


def _describe_age(catalog: Catalog, store: FileStore) -> str | None:
    if not _knows_pipeline(catalog):
        paths = [path for path in store.walk(f"{catalog.pipeline}/") if _EPOCH_FILE.search(f"/{path}")]
        paths += [found.path for found in list_snapshots(store, catalog.pipeline)]
        paths += [f"marks/{mark.name}" for mark in read_marks(store, catalog.pipeline).found if mark.writes]
        # Asked again: a pipeline may have begun meanwhile.
        if not paths or _knows_pipeline(catalog):
            return None
        return f"it does not know the pipeline, but files of it are there, such as {paths[-1]}"
    if (ahead := describe_ahead_of_sound(catalog, store)) is not None:
        return ahead
    # Listed before the catalog is asked: it may be ahead of the files of a running pipeline, never behind.
    paths = list(_young_files(store, catalog.pipeline, epochs.next_epoch(catalog)))
    next_epoch = epochs.next_epoch(catalog)
    held = [lease.token for lease in leases.list_leases(catalog) if lease.stage is Stage.INGEST]
    path = find_newer(paths, next_epoch=next_epoch, token=max(held, default=0))
    return None if path is None else f"it ends with epoch {next_epoch - 1}, but {path} was written later"


def _knows_pipeline(catalog: Catalog) -> bool:
    return catalog.exists() and catalog.identity() is not None


def _young_files(store: FileStore, pipeline: str, next_epoch: int) -> Iterator[str]:
    """Those of the catalog's last epochs and of the next ones; older ones prove nothing."""
    folder = next_epoch // _EPOCHS_A_FOLDER
    for number in (folder, folder + 1):
        yield from store.walk(f"{pipeline}/{number:07d}")


def require_newest(catalog: Catalog, store: FileStore) -> None:
    """Refuse a catalog that is damaged, lost, or older than the files."""
    if (damage := examine(catalog.engine)) is not None:
        raise CorruptFileError(
            f"Pipeline {catalog.pipeline}: the catalog {catalog.engine.url.database} is damaged ({damage}); nothing "
            "was read. `oncehouse repair --plan` shows from what it can be restored."
        )
    list_marks(store, catalog.pipeline)  # refuses damaged ones
    if (age := describe_age(catalog, store)) is not None:
        where = catalog.engine.url.render_as_string(hide_password=True)
        raise CatalogBehindError(
            f"Pipeline {catalog.pipeline}: the catalog {where} is lost or older than the ledger's files: {age}. To go "
            "on from it could double what ClickHouse has; nothing was read. `oncehouse repair --plan` shows how it is "
            "brought up to date. To start from scratch, give the pipeline another name or remove its files."
        )
