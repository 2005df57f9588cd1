"""Those who look wait for a database only so long; what then happens is an error of ours, and holds up nobody else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from ledger_examples import IDENTITY
from oncehouse.common import database
from oncehouse.common.database import LOOKING, Patience
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.open import KeptLedger
from oncehouse.messaging.outbox.open import open_outbox

SHORT = Patience(connect_seconds=1, statement_seconds=1, pool_seconds=1)


def watched(url: str) -> Any:
    return SimpleNamespace(pipeline="shop", ledger=SimpleNamespace(catalog=url))


@pytest.fixture
def ledger_url(postgres_url) -> str:
    catalog = Catalog(postgres_url, "shop", retry_seconds=())
    catalog.prepare()
    catalog.adopt(IDENTITY)
    catalog.close()
    return postgres_url


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"postgresql+psycopg://nobody@127.0.0.1:{listener.getsockname()[1]}/none"


def test_when_all_connections_are_taken_the_catalog_is_told_to_be_busy(catalog):
    catalog.engine.pool._timeout = 0.01
    with ExitStack() as stack:
        with suppress(TransientError):
            while True:
                stack.enter_context(catalog.read())
        with pytest.raises(TransientError, match="all connections of this process are in use"):
            epochs.next_epoch(catalog)
        with pytest.raises(TransientError, match="all connections of this process are in use"):
            catalog.adopt(IDENTITY)
        with (
            pytest.raises(TransientError, match=r"Outbox.*all connections of this process are in use"),
            database.begin(catalog.engine, whose="Outbox"),
        ):
            raise AssertionError("a further connection")
    assert epochs.next_epoch(catalog) == 1


@pytest.mark.servers
def test_a_look_at_a_table_that_somebody_holds_ends(ledger_url):
    holder, looker = create_engine(ledger_url), Catalog(ledger_url, "shop", patience=SHORT)
    with holder.begin() as connection:
        connection.execute(text("LOCK TABLE oncehouse_epochs IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(TransientError, match="statement timeout"):
            epochs.next_epoch(looker)
    assert epochs.next_epoch(looker) == 1
    looker.close()
    holder.dispose()


@pytest.mark.servers
def test_the_dashboards_catalog_is_bounded_and_a_pipelines_is_not(ledger_url):
    kept, own = KeptLedger(watched(ledger_url)), Catalog(ledger_url, "shop")
    told = []
    for catalog in (kept.open(), own):
        with catalog.read() as connection:
            told.append(connection.execute(text("SHOW statement_timeout")).scalar_one())
    assert told == [f"{LOOKING.statement_seconds}s", "0"]
    assert kept.open() is kept.open()
    kept.close()
    own.close()


@pytest.mark.servers
def test_who_cannot_connect_holds_up_nobody_else(silent_url, monkeypatch):
    monkeypatch.setattr(database, "LOOKING", SHORT)
    kept = KeptLedger(watched(silent_url))
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(kept.open)
        while not opening.running():
            pass
        kept.close()
        assert not opening.done(), "closing waited until the server was given up"
        with pytest.raises(TransientError, match="does not answer"):
            opening.result(60)


def test_an_outbox_whose_server_says_nothing_is_given_up(silent_url):
    with pytest.raises(TransientError, match="does not answer"), open_outbox(silent_url, patience=SHORT):
        raise AssertionError("opened")
