"""Taking a lease: only in a catalog that has come to every mark outside of it, under a token that no process was given.

The catalog alone cannot say whether it has lost its last transactions; the marks among the ledger's files can. A lease
is marked before it is used, so that its token is known even where the catalog forgets that it gave it out.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from oncehouse.errors import OncehouseError
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.lease_holder import is_dead
from oncehouse.ledger.marks import describe_ahead, mark_lease, read_marks
from oncehouse.ledger.models import Lease, Stage
from oncehouse.ledger.storage.file_store import FileStore

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog


def take_lease(
    pipeline: Pipeline, catalog: Catalog, stage: Stage, holder: str, *, may_be_behind: bool = False
) -> Lease:
    """Also from a process of this machine that is surely gone.

    Raises LeaseHeldError, and CatalogBehindError where the catalog has lost transactions; only a repair, which brings
    it up to date, may take a lease of such a one.
    """
    for lease in leases.list_leases(catalog):
        if lease.stage is stage and is_dead(lease.holder):
            leases.release(catalog, lease)
    lease = leases.acquire(catalog, stage, holder=holder, lease_seconds=pipeline.lease)
    try:
        store = FileStore(pipeline.ledger.files)
        if not may_be_behind:
            require_current(catalog, store)
        given = read_marks(store, catalog.pipeline).tokens.get(stage, 0)
        if given >= lease.token:
            lease = leases.acquire(catalog, stage, holder=holder, lease_seconds=pipeline.lease, above=given)
        mark_lease(catalog, store, stage, lease.token)
        if not may_be_behind:
            # A former holder that wakes up may have sent rows of what was lost until the new mark stood there.
            require_current(catalog, store)
    except BaseException:
        with suppress(OncehouseError):
            leases.release(catalog, lease)  # it runs out by itself; what went wrong before must be reported
        raise
    return lease


def require_current(catalog: Catalog, store: FileStore) -> None:
    """Raise CatalogBehindError where rows were sent after what the catalog knows."""
    if (ahead := describe_ahead(catalog, store)) is not None:
        catalog.refuse_behind(ahead)
