"""A pipeline that an earlier version left in the middle of its work, and that today's oncehouse continues.

Kafka has the same records at the same offsets, ClickHouse the rows that had arrived. What the release had read must not
be read again, what it had not sent must be sent once, and events that it knew must stay duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import NewTopic
from sqlalchemy import create_engine, text

import old_ledger
from live_pipeline import LivePipeline, make_event, note_of, wait_until
from oncehouse.errors import UpgradeNeededError
from oncehouse.ledger.catalog import migrations, schema
from oncehouse.ledger.models import BatchStatus, EpochKind, RequestKind

OLD = [make_event(number) for number in range(120)]
NEW = [make_event(number) for number in range(120, 150)]
PARTITIONS = 2

pytestmark = pytest.mark.long


@pytest.fixture
def old_topic(kafka_admin) -> Iterator[str]:
    """The topic of the release on the broker of the tests, by its id."""
    new = NewTopic(old_ledger.TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    kafka_admin.create_topics([new])[old_ledger.TOPIC].result(30)
    wait_until(lambda: topic_id(kafka_admin), "a topic that the broker knows")
    yield str(topic_id(kafka_admin))
    kafka_admin.delete_topics([old_ledger.TOPIC])[old_ledger.TOPIC].result(30)
    # The next test makes a topic of the same name, and a broker deletes after it has answered.
    wait_until(lambda: topic_id(kafka_admin) is None, "a topic that is gone")


def topic_id(kafka_admin) -> str | None:
    asked = kafka_admin.describe_topics(TopicCollection([old_ledger.TOPIC]))[old_ledger.TOPIC]
    return None if asked.exception(30) is not None else str(asked.result().topic_id)


@pytest.fixture
def left_by_release(
    kafka, clickhouse, clickhouse_client, produce, spark, tmp_path, old_topic
) -> Iterator[Callable[..., LivePipeline]]:
    """`left_by_release(url, version)`: an earlier version's pipeline, its catalog in SQLite or PostgreSQL."""
    made: list[LivePipeline] = []
    clickhouse_client.command(f"CREATE DATABASE {old_ledger.DATABASE} ENGINE = Atomic")

    def make(url: str | None = None, version: int = old_ledger.RELEASED) -> LivePipeline:
        ledger = old_ledger.unpack(tmp_path / "ledger", version)
        if url is not None:
            old_ledger.fill_postgres(ledger, url)
        old_ledger.set_topic_id(url or ledger.url, old_topic)
        clickhouse_client.command(ledger.made["ddl"])
        clickhouse_client.raw_insert(old_ledger.TABLE, insert_block=ledger.rows, fmt="Native")
        live_pipeline = LivePipeline(
            folder=ledger.folder,
            servers=kafka.bootstrap_servers,
            topics=[old_ledger.TOPIC],
            database=old_ledger.DATABASE,
            url=f"http://127.0.0.1:{clickhouse.place.ports['http']}",
            client=clickhouse_client,
            spark=spark,
            produce=produce,
        )
        live_pipeline.document["pipeline"] = old_ledger.PIPELINE
        live_pipeline.document["ledger"]["catalog"] = url or ledger.url
        for partition, values in enumerate(ledger.produced):
            live_pipeline.send_raw(values, partition=partition)
        live_pipeline.expected = {event: note_of(event) for event in OLD}
        made.append(live_pipeline)
        return live_pipeline

    yield make
    clickhouse_client.command(f"DROP DATABASE {old_ledger.DATABASE} SYNC")
    for live_pipeline in made:
        live_pipeline.catalog.close()


def go_on(live_pipeline: LivePipeline) -> None:
    """Old events once more, among new ones, in both partitions."""
    live_pipeline.send([*OLD[::3], *NEW[:20]], partition=1)
    live_pipeline.send([*NEW[10:], *OLD[1::3]], partition=0)
    live_pipeline.run()


@pytest.mark.parametrize("version", old_ledger.ARCHIVES)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_ledger_of_an_earlier_version_is_upgraded_and_the_pipeline_continues_exactly(
    left_by_release, database, version, request
):
    url = None if database == "sqlite" else request.getfixturevalue("postgres_url")
    live_pipeline = left_by_release(url, version)
    arrived = len(live_pipeline.rows())
    assert arrived == 80, "forty events of the earlier version have not arrived yet"
    with pytest.raises(UpgradeNeededError):
        live_pipeline.catalog.exists()
    go_on(live_pipeline)
    assert live_pipeline.said[0] == f"The catalog was upgraded from version {version} to {schema.VERSION}."
    live_pipeline.assert_exact()
    assert {batch.status for batch in live_pipeline.batches()} == {BatchStatus.IN_CLICKHOUSE}
    counts = live_pipeline.counts()
    assert (counts.new, counts.dead_letter, counts.skipped) == (150, 2, 1)
    live_pipeline.request(RequestKind.REPLAY_DEAD_LETTERS)
    assert live_pipeline.counts(EpochKind.REPLAY).dead_letter == 2, (
        "letters of the release are read and tried again"
    )
    live_pipeline.retain()
    assert not live_pipeline.findings(), "packs, merges and the window work on files of both versions"


def test_batches_that_the_release_had_not_sent_arrive_under_their_own_ids(left_by_release):
    live_pipeline = left_by_release()
    with create_engine(live_pipeline.document["ledger"]["catalog"]).connect() as connection:
        asked = text("SELECT batch_id FROM oncehouse_batches WHERE status IN ('NEW', 'IN_PROCESS')")
        waiting = {row[0] for row in connection.execute(asked)}
        connection.engine.dispose()
    assert len(waiting) == 2
    live_pipeline.run()
    found = live_pipeline.client.query(
        f"SELECT DISTINCT toString(_batch_id) FROM {live_pipeline.table}"
    ).result_rows
    assert waiting <= {row[0] for row in found}
    live_pipeline.assert_exact()


def test_a_catalog_that_forgot_the_keys_of_the_release_is_noticed(left_by_release):
    """A seeded defect: an upgrade that leaves the key index behind."""
    live_pipeline = left_by_release()
    engine = create_engine(live_pipeline.document["ledger"]["catalog"])
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM oncehouse_segments"))
    engine.dispose()
    go_on(live_pipeline)
    with pytest.raises(AssertionError, match="rows are doubled"):
        live_pipeline.assert_exact()


def test_an_upgrade_that_is_left_out_is_noticed(left_by_release, monkeypatch):
    """A seeded defect: the process takes the old tables for today's."""
    live_pipeline = left_by_release()
    monkeypatch.setattr(migrations, "migrate", lambda connection: None)
    with pytest.raises(UpgradeNeededError):
        go_on(live_pipeline)
    with pytest.raises(AssertionError, match="events are lost"):
        live_pipeline.assert_exact()
