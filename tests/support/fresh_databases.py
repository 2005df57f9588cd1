"""Databases of one's own on the session's servers, for a test or for a module of tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from clickhouse_connect.driver.client import Client

from oncehouse.devstack.postgres import Postgres


@contextmanager
def fresh_clickhouse(client: Client) -> Iterator[str]:
    """Its name."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    client.command(f"CREATE DATABASE {name} ENGINE = Atomic")
    yield name
    client.command(f"DROP DATABASE IF EXISTS {name} SYNC")


@contextmanager
def fresh_postgres(postgres: Postgres) -> Iterator[str]:
    """Its SQLAlchemy URL."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    server = postgres.url.replace("+psycopg", "")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield f"{postgres.url.rsplit('/', 1)[0]}/{name}"
    # Connected anew: the test may have killed the server in between.
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
