"""Every test here runs against each SQL database that may hold a catalog."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text

from ledger_examples import IDENTITY
from oncehouse.ledger.catalog.database import Catalog


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)])
def catalog_url(request, tmp_path) -> Iterator[str]:
    """An empty database of the test's own."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'catalog.db'}"
        return
    server = request.getfixturevalue("postgres").url
    schema = f"contract_{uuid.uuid4().hex}"
    engine = create_engine(server)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    yield f"{server}?options=-csearch_path%3D{schema}"
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


@pytest.fixture
def catalog(catalog_url) -> Iterator[Catalog]:
    opened = Catalog(catalog_url, "shop", retry_seconds=(0.0, 0.0))
    opened.prepare()
    opened.adopt(IDENTITY)
    yield opened
    opened.close()
