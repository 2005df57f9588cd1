"""A small shop on the real ClickHouse for tests of what runs beside the forward steps: one source, one Fact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import Scheduler
from oncehouse.etl.scheduler.step_runner import StepDone, StepRunner
from oncehouse.etl.state import transitions
from oncehouse.etl.state.clickhouse_store import RocksDbOffsets
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.sql_store import CatalogOffsets
from oncehouse.etl.state.topic_lease import TopicWorker
from oncehouse.etl.state.transitions import OffsetStore
from oncehouse.ledger.catalog.database import Catalog

BASE_MS = 1_767_225_600_000  # 2026-01-01

BOUND = """(pos, id) > ({last_time:DateTime64(3)}, {last_id:UInt64})
    AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"""
FROM_OFFSETS = """(pos, id) > (SELECT last FROM {db}.Offsets WHERE topic = 'Fact')
    AND (pos, id) <= (SELECT next FROM {db}.Offsets WHERE topic = 'Fact')"""


class DiedError(BaseException):
    """As if by kill -9: nothing of the process runs after it."""


@dataclass(frozen=True, kw_only=True)
class Shop:
    client: Client
    database: str
    store: OffsetStore
    topic: Topic

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return self.client.query(text.replace("{db}", self.database))

    def run(self, text: str) -> None:
        self.client.command(text.replace("{db}", self.database))

    def add(self, first: int, count: int, *, at_ms: int | None = None, step_ms: int = 1) -> None:
        """Rows with these ids, a millisecond apart from where their id says, or all at one time."""
        time = f"{BASE_MS} + number * {step_ms}" if at_ms is None else str(BASE_MS + at_ms)
        self.run(
            f"INSERT INTO {{db}}.stage SELECT fromUnixTimestamp64Milli(toInt64({time})), number, number * 10 "
            f"FROM numbers({first}, {count})"
        )

    def make_view(self, condition: str, extra: str = "") -> None:
        self.run(
            "CREATE OR REPLACE VIEW {db}.FactTransform AS SELECT pos, id, v, c FROM {db}.stage "
            f"ARRAY JOIN [1, 2] AS c WHERE {condition} {extra}"
        )

    @contextmanager
    def scheduler(
        self, topic: Topic | None = None, *, hostid: str = "here", lease_seconds: float = 60
    ) -> Iterator[Scheduler]:
        if not lease_seconds:  # whoever holds the topic is dead
            free_topics(self.store)
        worker = TopicWorker(hostid=hostid, lease_seconds=lease_seconds or 60)
        with Scheduler(
            self.client, self.store, (topic or self.topic,), folder=Path(), worker=worker
        ) as scheduler:
            yield scheduler

    def catch_up(self, topic: Topic | None = None, *, hostid: str = "here") -> list[StepDone]:
        """Everything that can be done, done by a host that waits for nobody's lease."""
        with self.scheduler(topic, hostid=hostid, lease_seconds=0) as scheduler:
            rounds = scheduler.run_until_idle()
        return [one for each in rounds for one in each.outcomes if isinstance(one, StepDone)]

    def runner(self, hostid: str = "here") -> StepRunner:
        return StepRunner(self.client, self.store, TopicWorker(hostid=hostid), Path())

    def offset(self) -> Offset:
        return self.store.read_all().offsets["Fact"]

    def check_exact(self) -> None:
        """Each row of the source gives two of the Fact, each once, and as often in the view behind it."""
        place = "arraySort(groupArray((toUnixTimestamp64Milli(pos), id, v, c)))"
        (expected,) = self.sql(f"SELECT {place} FROM (SELECT *, c FROM {{db}}.stage ARRAY JOIN [1, 2] AS c)")
        (found,) = self.sql(f"SELECT {place} FROM {{db}}.fact")
        assert found == expected, (set(expected[0]) - set(found[0]), len(found[0]), len(expected[0]))
        assert self.sql("SELECT sum(n) FROM {db}.counts") == [(len(expected[0]),)]


def free_topics(store: OffsetStore) -> None:
    """As if the leases of all hosts had run out."""
    for row in store.read_all().offsets.values():
        if row.hostid:
            transitions.unlock(store, row.topic)


@contextmanager
def open_shop(url: str, database: str, folder: Path, condition: str = BOUND) -> Iterator[Shop]:
    """Offsets are in a catalog, where they cost little, unless the transform reads them."""
    client = connect(ClickHouse(url=url))
    if condition == FROM_OFFSETS:
        yield make_shop(client, database, RocksDbOffsets(client, f"{database}.Offsets"), condition)
        return
    catalog = Catalog(f"sqlite:///{folder / 'offsets.db'}", "etl")
    try:
        yield make_shop(client, database, CatalogOffsets(catalog), condition)
    finally:
        catalog.close()


def make_shop(client: Client, database: str, store: OffsetStore, condition: str) -> Shop:
    store.prepare()
    topic = Topic(
        topic="Fact",
        dst=f"{database}.fact",
        depends_on=(f"{database}.stage",),
        transform=f"{database}.FactTransform",
        maxstep_rows=40,
    )
    shop = Shop(client=client, database=database, store=store, topic=topic)
    shop.run(
        "CREATE TABLE {db}.stage (pos DateTime64(3), id UInt64, v UInt64) ENGINE = MergeTree ORDER BY (pos, id)"
    )
    remembers = "SETTINGS non_replicated_deduplication_window = 1000"
    shop.run(
        "CREATE TABLE {db}.fact (pos DateTime64(3), id UInt64, v UInt64, c UInt8) "
        f"ENGINE = MergeTree PARTITION BY id % 2 ORDER BY (pos, id) {remembers}"
    )
    shop.run(f"CREATE TABLE {{db}}.counts (n UInt64) ENGINE = MergeTree ORDER BY n {remembers}")
    shop.run("CREATE MATERIALIZED VIEW {db}.counting TO {db}.counts AS SELECT count() AS n FROM {db}.fact")
    shop.make_view(condition.replace("{db}", database))
    return shop
