"""A standby that has not repeated all yet: no catalog has lost anything, it is only the wrong server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ledger_examples import IDENTITY, make_registration
from oncehouse.common import database
from oncehouse.errors import CatalogBehindError, TransientError
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.marks import Sending, write_mark
from oncehouse.ledger.models import Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.take_lease import require_current, take_lease
from oncehouse.pipeline.checks.stale_catalog import require_newest
from postgres_pair import PostgresPair


@pytest.fixture
def pipeline(tmp_path) -> SimpleNamespace:
    return SimpleNamespace(
        pipeline="shop", lease=600.0, ledger=SimpleNamespace(files=str(tmp_path / "files"))
    )


def fill(pipeline, catalog: Catalog) -> None:
    token = take_lease(pipeline, catalog, Stage.INGEST, "first").token
    register(catalog, token, make_registration())
    write_mark(catalog, FileStore(pipeline.ledger.files), Stage.INGEST, token, Sending(epoch=1))


def demand_all(pipeline, catalog: Catalog) -> None:
    """Every look that would call the catalog behind."""
    store = FileStore(pipeline.ledger.files)
    for look in (require_current, require_newest):
        with pytest.raises(TransientError, match="target_session_attrs=read-write"):
            look(catalog, store)


@pytest.mark.servers
def test_a_standby_that_follows_late_is_waited_for_and_a_promoted_one_is_refused(pipeline, tmp_path_factory):
    with PostgresPair(tmp_path_factory.mktemp("pair")) as pair:
        primary = Catalog(pair.url, "shop", retry_seconds=())
        primary.prepare()
        primary.adopt(IDENTITY)
        pair.cut_off()
        fill(pipeline, primary)
        url = f"postgresql+psycopg://postgres@127.0.0.1:{pair.standby.port}/postgres?sslmode=disable"
        standby = Catalog(url, "shop", retry_seconds=())
        demand_all(pipeline, standby)
        primary.close()
        pair.fail_over()
        with pytest.raises(CatalogBehindError):
            require_newest(standby, FileStore(pipeline.ledger.files))
        standby.close()


def test_a_lease_that_a_standby_does_not_know_yet_is_not_called_lost(catalog, pipeline, monkeypatch):
    lease = take_lease(pipeline, catalog, Stage.INGEST, "first")
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM oncehouse_leases")
    with pytest.raises(CatalogBehindError):
        leases.require_held(catalog, lease)
    monkeypatch.setattr(database, "is_standby", lambda _: True)
    with pytest.raises(TransientError, match="target_session_attrs=read-write"):
        leases.require_held(catalog, lease)
