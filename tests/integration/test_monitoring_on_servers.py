"""Monitor, metrics and dashboard over real servers: what they say is what Kafka, Spark and ClickHouse did."""

from __future__ import annotations

import yaml
from confluent_kafka import Consumer, TopicPartition
from opentelemetry.sdk.trace import ReadableSpan
from sqlalchemy import create_engine

from etl_shop import open_shop
from live_pipeline import make_event
from oncehouse.common.http_auth import make_http_auth
from oncehouse.messaging.consumer.group_lag import GroupPartition, Groups
from oncehouse.messaging.outbox.tables import create_outbox, outbox_tables
from oncehouse.metrics import definitions
from oncehouse.metrics.collect import collect, stream_samples
from oncehouse.monitoring.monitor import Monitor, MonitorTargets
from oncehouse.monitoring.unavailable import NoAnswer
from oncehouse.web.app import Dashboard
from oncehouse.web.page_templates import make_environment, render_live
from oncehouse.web.verification_jobs import Verifications
from oncehouse.web.views import Pages
from recorded_spans import recorded_spans

EVENTS = [make_event(number) for number in range(150)]


def test_a_pipeline_that_ran_is_told_as_it_ran(live_pipeline):
    live_pipeline.send([*EVENTS, *EVENTS[:30]])
    with recorded_spans() as spans:
        result = live_pipeline.run()
    judge_spans(spans, live_pipeline.table)
    live_pipeline.send([make_event(number) for number in range(150, 157)])  # which nobody has read
    stream = result.progress.stream
    assert stream is not None
    assert stream.phase_seconds["triggerExecution"] > 0
    told = {sample.metric: sample.value for sample in stream_samples("live", stream)}
    assert told[definitions.SPARK_BATCH] == stream.batch

    live_pipeline.command()  # writes the pipeline file
    monitor = Monitor(MonitorTargets(pipelines=(live_pipeline.folder / "pipeline.yaml",)), wait_seconds=30)
    samples = {(sample.metric, sample.labels): sample.value for sample in collect(monitor)}
    assert samples[definitions.RECORDS, ("live", "kafka", "new")] == 150
    assert samples[definitions.RECORDS, ("live", "kafka", "duplicate")] == 30
    assert samples[definitions.LAG, ("live", live_pipeline.topic, "0")] == 7
    assert samples[definitions.ROWS_LOADED, ("live", live_pipeline.table)] == 150
    assert samples[definitions.ANSWERS, ("kafka", "live")] == 1
    assert samples[definitions.INSERT_SECONDS, ("live", live_pipeline.table)] > 0
    assert monitor.verify("live").is_clean
    pages = Pages(monitor, Verifications(monitor))
    shown = render_live(make_environment(), pages.pipeline({"name": "live"}), {"may_act": True})
    assert live_pipeline.table in shown
    assert "in clickhouse" in shown
    assert Dashboard(monitor, make_http_auth("127.0.0.1:0", token=None)).app is not None


def judge_spans(spans: list[ReadableSpan], table: str) -> None:
    """One epoch with its phases in it, one batch with its attempt in it, and what each was about."""
    found = {span.name: span for span in spans}
    assert [span.name for span in spans] == ["plan", "read", "decide", "register", "epoch", "insert", "batch"]
    assert {span.attributes["oncehouse.pipeline"] for span in spans} == {"live"}
    epoch, batch, insert = found["epoch"], found["batch"], found["insert"]
    for name in ("plan", "read", "decide", "register"):
        assert found[name].parent.span_id == epoch.context.span_id
        assert found[name].attributes["oncehouse.epoch"] == epoch.attributes["oncehouse.epoch"]
        assert epoch.start_time <= found[name].start_time <= found[name].end_time <= epoch.end_time
    assert found["read"].attributes["oncehouse.records"] == 180
    assert (epoch.attributes["oncehouse.new"], epoch.attributes["oncehouse.duplicate"]) == (150, 30)
    assert insert.parent.span_id == batch.context.span_id
    assert insert.attributes["oncehouse.batch"] == batch.attributes["oncehouse.batch"]
    assert insert.attributes["oncehouse.query_id"].startswith(batch.attributes["oncehouse.batch"])
    assert (insert.attributes["oncehouse.attempt"], insert.attributes["oncehouse.outcome"]) == (1, "inserted")
    assert (batch.attributes["oncehouse.table"], batch.attributes["oncehouse.rows"]) == (table, 150)
    assert batch.attributes["oncehouse.status"] == "IN_CLICKHOUSE"


def test_a_scheduler_is_told_with_its_position_and_its_lag(clickhouse, database, tmp_path):
    url = f"http://127.0.0.1:{clickhouse.place.ports['http']}"
    with open_shop(url, database, tmp_path) as shop:
        shop.add(0, 100)
        shop.catch_up()
        shop.add(100, 5, at_ms=60_000)
        lineage = [
            {"topic": "Stage", "dst": f"{database}.stage"},
            {
                "topic": "Fact",
                "dst": f"{database}.fact",
                "depends_on": [f"{database}.stage"],
                "transform": f"{database}.FactTransform",
            },
        ]
        (tmp_path / "lineage").mkdir()
        (tmp_path / "lineage" / "shop.yaml").write_text(yaml.safe_dump({"topics": lineage}))
        settings = {
            "clickhouse": {"url": url},
            "offsets": {"store": "catalog", "catalog": "sqlite:///offsets.db"},
        }
        (tmp_path / "etl.yaml").write_text(yaml.safe_dump(settings))
        monitor = Monitor(MonitorTargets(etl=tmp_path / "etl.yaml"), wait_seconds=30)
        samples = {(sample.metric, sample.labels): sample.value for sample in collect(monitor)}
    assert samples[definitions.ANSWERS, ("etl", "etl.yaml")] == 1
    assert samples[definitions.ETL_LAG, ("Fact", f"{database}.stage")] > 50
    assert samples[definitions.ETL_FAILURES, ("Fact",)] == 0


def test_a_consumer_group_is_told_as_the_brokers_know_it(kafka, topic, produce):
    name = topic(partitions=2)
    produce(name, [b"x"] * 10, partition=0)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"group-{name}"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)
    consumer.close()
    groups = Groups([f"group-{name}", "nobody"], bootstrap_servers=kafka.bootstrap_servers, options={})
    found, nobody = groups.read()
    assert found.partitions == (GroupPartition(topic=name, partition=0, committed=4, lag=6),)
    assert (found.lag, found.members, found.state) == (6, 0, "empty")
    assert (nobody.partitions, nobody.members) == ((), 0)


def test_an_outbox_in_postgresql_is_told_and_a_broker_that_is_away_costs_its_groups_alone(
    postgres_url, tmp_path
):
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        create_outbox(connection, outbox_tables())
    engine.dispose()
    file = tmp_path / "messaging.yaml"
    file.write_text(f"database: {postgres_url}\nkafka: {{bootstrap_servers: '127.0.0.1:9'}}\n")
    monitor = Monitor(MonitorTargets(messaging=file, groups=("billing",)), wait_seconds=0.2)
    assert monitor.outbox().waiting == 0
    assert isinstance(monitor.groups(), NoAnswer)
