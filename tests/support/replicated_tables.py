"""A replicated table for tests: two real servers behind the stand-in of the dev stack, and how to reach it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from oncehouse.clickhouse import replica_sync
from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.pipeline import ClickHouse
from replica_sql import Statement
from replica_stand_in import UNTIL_RELEASED, ReplicaStandIn

__all__ = ["UNTIL_RELEASED", "connect_to", "leave_out_sync", "open_replicas", "released_at_sync"]


@contextmanager
def open_replicas(ports: tuple[int, int], database: str) -> Iterator[ReplicaStandIn]:
    """With the database on both; what the first server has of it the second one lacks."""
    with ReplicaStandIn(ports=ports) as replicas:
        second = connect(ClickHouse(url=f"http://127.0.0.1:{ports[1]}"))
        second.command(f"CREATE DATABASE IF NOT EXISTS {database} ENGINE = Atomic")
        yield replicas
        replicas.release()
        failures = list(replicas.failures)
        second.command(f"DROP DATABASE IF EXISTS {database} SYNC")
        assert not failures, failures


def connect_to(replicas: ReplicaStandIn, **changes: object) -> Client:
    return connect(ClickHouse(url=replicas.url, **changes))


@contextmanager
def released_at_sync(replicas: ReplicaStandIn) -> Iterator[None]:
    """The second replica gets what it lacks once it was asked to wait for that, or at the end."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            if replicas.statements[Statement.SYNC, 1]:
                replicas.lag_seconds = 0.0
                replicas.release()
                return

    thread = threading.Thread(target=watch, name="release")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        replicas.lag_seconds = 0.0
        replicas.release()
        replicas.route(0)


def leave_out_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: whichever replica answers is believed."""
    monkeypatch.setattr(replica_sync, "read_engines", lambda *_: ())
