"""The fixture of tables that are followed, for every folder whose tests let that happen."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from captured_database import CapturedDatabase


@pytest.fixture
def make_cdc(
    connect, postgres_url, kafka, clickhouse, database, clickhouse_client, spark, tmp_path
) -> Iterator[Callable[..., CapturedDatabase]]:
    """`make_cdc("shop")`: an empty PostgreSQL database, to be followed under this prefix."""
    made: list[CapturedDatabase] = []

    def make(prefix: str | None = None) -> CapturedDatabase:
        captured = CapturedDatabase(
            folder=tmp_path,
            prefix=prefix or f"shop{uuid.uuid4().hex[:8]}",
            connect=connect,
            postgres_url=postgres_url,
            bootstrap_servers=kafka.bootstrap_servers,
            clickhouse_url=f"{clickhouse.url}/{database}",
            client=clickhouse_client,
            spark=spark,
        )
        made.append(captured)
        return captured

    yield make
    for captured in made:
        captured.close()


@pytest.fixture
def cdc(make_cdc) -> CapturedDatabase:
    return make_cdc()
