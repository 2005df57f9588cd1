"""Fixtures of live pipelines, for every folder whose tests run one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from live_pipeline import FIELDS, LivePipeline
from oncehouse.config.pipeline import Pipeline
from oncehouse.devstack.jars import connector_jars
from oncehouse.pipeline.spark.session import open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator[SparkSession]:
    """One Spark for the whole session: starting it costs more than most tests."""
    pipeline = Pipeline(
        pipeline="tests",
        source={"kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["none"]}, "fields": FIELDS},
        identity={"fields": ["product_id"]},
        tables=[{"name": "none"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///none.db", "files": str(tmp_path_factory.mktemp("spark"))},
        spark={"master": "local[2]", "settings": {"spark.driver.memory": "1g"}},
    )
    session = open_session(pipeline, connector_jars())
    yield session
    session.stop()


@pytest.fixture
def reader(request) -> str:
    """What reads Kafka; a test is run with both by `@both_readers`."""
    return getattr(request, "param", os.environ.get("TEST_READER", "connector"))


@pytest.fixture
def make_pipeline(
    request, reader, kafka, clickhouse, topic, produce, database, clickhouse_client, spark, tmp_path
) -> Iterator[Callable[..., LivePipeline]]:
    """`make_pipeline(partitions=2, topics=2, tables=False, identity={"window": 5})`: a pipeline, its tables made.

    Where a scenario or its defect is played a materialized view stands behind the table.
    """
    judged = any(request.node.get_closest_marker(mark) is not None for mark in ("scenario", "defect"))
    made: list[LivePipeline] = []

    def make(*, partitions: int = 1, topics: int = 1, tables: bool = True, **sections: Any) -> LivePipeline:
        live_pipeline = LivePipeline(
            folder=tmp_path,
            servers=kafka.bootstrap_servers,
            topics=sorted(topic(partitions=partitions) for _ in range(topics)),
            database=database,
            url=f"http://127.0.0.1:{clickhouse.place.ports['http']}",
            client=clickhouse_client,
            spark=spark,
            produce=produce,
        )
        live_pipeline.document["source"]["kafka"]["reader"] = reader
        made.append(live_pipeline)
        for name, section in sections.items():
            known = live_pipeline.document.get(name)
            live_pipeline.document[name] = known | section if isinstance(known, dict) else section
        if tables:
            live_pipeline.create_tables()
            if judged:
                live_pipeline.create_view()
        return live_pipeline

    yield make
    for live_pipeline in made:
        live_pipeline.catalog.close()


@pytest.fixture
def live_pipeline(make_pipeline) -> LivePipeline:
    return make_pipeline(partitions=2)


@pytest.fixture
def cluster_pipeline(make_pipeline, spark_cluster, s3, postgres_url) -> LivePipeline:
    """A pipeline whose tasks run in executors of a cluster, with its catalog in PostgreSQL and its files in a bucket.

    Its drivers are processes of their own. Each machine may keep one megabyte of the bucket's files.
    """
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        # Of the four cores there are, so that another driver finds some while this one still has its own.
        "spark.cores.max": "2",
    }
    return make_pipeline(
        partitions=2,
        ledger={"catalog": postgres_url, "files": s3.files(uuid.uuid4().hex)},
        spark={"master": spark_cluster.url, "settings": settings, "cache": "1MB"},
    )
