"""What every storage of operations promises: committed ones only, listed until removed, removed exactly."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis as redis_client
from sqlalchemy import Engine, create_engine, text

from oncehouse.common.database import begin, open_engine
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.sync.changes.change import OperationKind
from oncehouse.sync.changes.redis_storage import RedisStorage
from oncehouse.sync.changes.register import SqlAlchemyWriter
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.changes.storage import OperationBacklog, OperationStorage
from oncehouse.sync.tables import create_tables, operations


@dataclass
class StorageSetup:
    engine: Engine
    storage: OperationStorage

    @contextmanager
    def writing(self) -> Iterator[SqlAlchemyWriter]:
        with begin(self.engine, whose="test") as connection:
            yield SqlAlchemyWriter(connection)

    def add(self, *keys: str, sync: str = "users", kind: OperationKind = OperationKind.UPDATE) -> None:
        with self.writing() as writer:
            self.storage.register(writer, sync, kind, list(keys))

    def listed(self, limit: int = 100, *, sync: str = "users") -> list[Any]:
        with begin(self.engine, whose="test") as connection:
            return self.storage.list_operations(connection, sync, limit)

    def keys(self) -> list[str]:
        return [one.key for one in self.listed()]


@pytest.fixture(
    params=[
        "outbox on sqlite",
        pytest.param("outbox on postgresql", marks=pytest.mark.servers),
        pytest.param("redis", marks=pytest.mark.servers),
    ]
)
def setup(request, tmp_path) -> Iterator[StorageSetup]:
    if request.param == "outbox on sqlite":
        engine = open_engine(f"sqlite:///{tmp_path / 'a.db'}", setting="database")
    else:
        engine = open_engine(request.getfixturevalue("postgres_url"), setting="database")
    with begin(engine, whose="test") as connection:
        create_tables(connection)
    storage: OperationStorage = OutboxStorage()
    if request.param == "redis":
        port = request.getfixturevalue("redis").place.ports["redis"]
        storage = RedisStorage.from_config({"port": port, "prefix": f"test:{uuid.uuid4()}:"})
    yield StorageSetup(engine, storage)
    engine.dispose()


def test_operations_are_listed_in_order_until_they_are_removed(setup):
    setup.add("[1]", "[2]", kind=OperationKind.INSERT)
    setup.add("[3]")
    setup.add("[9]", sync="orders")
    assert [(one.key, one.kind) for one in setup.listed()] == [
        ("[1]", OperationKind.INSERT),
        ("[2]", OperationKind.INSERT),
        ("[3]", OperationKind.UPDATE),
    ]
    assert len(setup.listed(2)) == 2
    setup.storage.remove(setup.engine, "users", [one.id for one in setup.listed(2)])
    assert setup.keys() == ["[3]"]
    assert len(setup.listed(sync="orders")) == 1


def test_no_keys_are_no_operation(setup):
    setup.add()
    assert setup.keys() == []


def test_exactly_the_listed_operations_are_removed_also_of_the_same_key(setup):
    setup.add("[1]")
    listed = setup.listed()
    setup.add("[1]")
    ids = [one.id for one in listed]
    setup.storage.remove(setup.engine, "users", ids)
    setup.storage.remove(setup.engine, "users", ids)
    assert setup.keys() == ["[1]"]


def test_what_rolled_back_is_never_listed(setup):
    with setup.engine.connect() as connection:
        setup.storage.register(SqlAlchemyWriter(connection), "users", OperationKind.UPDATE, ["[1]"])
        connection.rollback()
    assert setup.keys() == []
    with begin(setup.engine, whose="test") as connection:
        assert setup.storage.measure(connection, "users").count == 0


def test_what_has_not_committed_yet_is_listed_when_it_has(setup):
    if setup.engine.dialect.name == "sqlite":
        pytest.skip("SQLite lets nobody look while somebody writes")
    with setup.writing() as writer:
        setup.storage.register(writer, "users", OperationKind.UPDATE, ["[1]"])
        setup.add("[2]")
        assert setup.keys() == ["[2]"]
    assert sorted(setup.keys()) == ["[1]", "[2]"]


def test_many_keys_are_taken_and_removed_at_once(setup):
    keys = [f"[{n}]" for n in range(12_000)]
    setup.add(*keys)
    listed = setup.listed(20_000)
    assert [one.key for one in listed] == keys
    setup.storage.remove(setup.engine, "users", [one.id for one in listed])
    assert setup.keys() == []


@pytest.mark.servers
def test_listing_reads_no_more_than_it_lists_however_much_waits(postgres_url):
    """Nobody has counted a table that was filled a moment ago, and PostgreSQL takes it for nearly empty."""
    engine, storage = open_engine(postgres_url, setting="database"), OutboxStorage()
    with begin(engine, whose="test") as connection:
        create_tables(connection)
        storage.register(
            SqlAlchemyWriter(connection), "users", OperationKind.UPDATE, [f"[{n}]" for n in range(20_000)]
        )
    with begin(engine, whose="test") as connection:
        assert len(storage.list_operations(connection, "users", 100)) == 100
        (touched,) = connection.execute(
            text("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = :table"),
            {"table": operations.name},
        ).one()
    engine.dispose()
    assert touched <= 200


def test_what_waits_is_measured(setup):
    with begin(setup.engine, whose="test") as connection:
        assert setup.storage.measure(connection, "users") == OperationBacklog(count=0, oldest_seconds=None)
    setup.add("[1]", "[2]")
    with begin(setup.engine, whose="test") as connection:
        waiting = setup.storage.measure(connection, "users")
    assert waiting.count == 2
    assert 0 <= waiting.oldest_seconds < 60


def test_missing_tables_are_told_with_what_makes_them(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'b.db'}")
    with pytest.raises(ConfigurationError, match=r"manage\.py migrate"):
        StorageSetup(engine, OutboxStorage()).add("[1]")
    engine.dispose()


@pytest.fixture
def away(postgres_url) -> Iterator[StorageSetup]:
    """Redis at an address where nobody is."""
    engine = open_engine(postgres_url, setting="database")
    with begin(engine, whose="test") as connection:
        create_tables(connection)
    yield StorageSetup(engine, RedisStorage.from_config({"port": 1}))
    engine.dispose()


def test_while_redis_is_away_operations_are_kept_in_the_same_transaction(away):
    away.add("[1]")
    away.add("[2]")
    assert away.keys() == ["[1]", "[2]"]
    away.storage.remove(away.engine, "users", [away.listed()[0].id])
    assert away.keys() == ["[2]"]


def test_while_redis_is_away_and_nothing_else_waits_a_round_is_told_to_come_again(away):
    with pytest.raises(TransientError, match="Redis does not answer"):
        away.listed()
    with pytest.raises(TransientError), begin(away.engine, whose="test") as connection:
        away.storage.measure(connection, "users")


def test_redis_that_goes_and_comes_back_loses_nothing(stack, redis, postgres_url):
    engine = open_engine(postgres_url, setting="database")
    with begin(engine, whose="test") as connection:
        create_tables(connection)
    storage = RedisStorage.from_config(
        {"port": redis.place.ports["redis"], "prefix": f"test:{uuid.uuid4()}:"}
    )
    storage._away_seconds = 0.0
    setup = StorageSetup(engine, storage)
    setup.add("[1]")
    stack.kill("redis")
    setup.add("[2]")
    stack.start("redis")
    setup.add("[3]")
    assert sorted(setup.keys()) == ["[1]", "[2]", "[3]"]
    setup.storage.remove(engine, "users", [one.id for one in setup.listed()])
    assert setup.keys() == []
    engine.dispose()


def test_a_process_that_dies_after_its_commit_has_registered_already(redis, postgres_url):
    """The entry is there before the commit, so no crash can fall between the two."""
    engine = open_engine(postgres_url, setting="database")
    with begin(engine, whose="test") as connection:
        create_tables(connection)
    prefix = f"test:{uuid.uuid4()}:"
    client = redis_client.Redis(port=redis.place.ports["redis"], decode_responses=True)
    setup = StorageSetup(engine, RedisStorage(client, prefix=prefix))
    with setup.writing() as writer:
        setup.storage.register(writer, "users", OperationKind.UPDATE, ["[1]"])
        assert client.xlen(f"{prefix}users") == 1
    engine.dispose()


def test_redis_needs_a_database_that_tells_what_became_of_a_transaction(tmp_path):
    engine = open_engine(f"sqlite:///{tmp_path / 'c.db'}", setting="database")
    with pytest.raises(ConfigurationError, match="use the storage 'outbox'"):
        StorageSetup(engine, RedisStorage.from_config({"port": 1})).add("[1]")
    engine.dispose()
    with pytest.raises(ConfigurationError, match="CLICKHOUSE_REDIS_CONFIG"):
        RedisStorage.from_config({"no such": 1})


def test_many_open_transactions_do_not_hide_what_has_committed(redis, postgres_url):
    engine = open_engine(postgres_url, setting="database")
    with begin(engine, whose="test") as connection:
        create_tables(connection)
    setup = StorageSetup(
        engine, RedisStorage.from_config({"port": redis.place.ports["redis"], "prefix": f"t:{uuid.uuid4()}:"})
    )
    registered, done = threading.Event(), threading.Event()

    def stay_open() -> None:
        with setup.writing() as writer:
            setup.storage.register(writer, "users", OperationKind.UPDATE, [f"[{n}]" for n in range(50)])
            registered.set()
            done.wait(30)

    thread = threading.Thread(target=stay_open)
    thread.start()
    registered.wait(30)
    setup.add("[99]")
    assert [one.key for one in setup.listed(5)] == ["[99]"]
    done.set()
    thread.join()
    assert len(setup.listed(100)) == 51
    engine.dispose()
