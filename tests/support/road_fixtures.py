"""Fixtures of the road, for every folder whose tests let it run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from oncehouse.config.pipeline import Pipeline
from oncehouse.devstack.jars import connector_jars
from oncehouse.pipeline.spark.session import open_session
from road import FIELDS, Road


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
def make_road(
    request, kafka, clickhouse, topic, produce, database, clickhouse_client, spark, tmp_path
) -> Iterator[Callable[..., Road]]:
    """`make_road(partitions=2, topics=2, tables=False, identity={"window": 5})`: a road, its tables made.

    Where a scenario or its defect is played a materialized view stands behind the table.
    """
    judged = any(request.node.get_closest_marker(mark) is not None for mark in ("scenario", "defect"))
    made: list[Road] = []

    def make(*, partitions: int = 1, topics: int = 1, tables: bool = True, **sections: Any) -> Road:
        road = Road(
            folder=tmp_path,
            servers=kafka.bootstrap_servers,
            topics=sorted(topic(partitions=partitions) for _ in range(topics)),
            database=database,
            url=f"http://127.0.0.1:{clickhouse.place.ports['http']}",
            client=clickhouse_client,
            spark=spark,
            produce=produce,
        )
        made.append(road)
        for name, section in sections.items():
            known = road.document.get(name)
            road.document[name] = known | section if isinstance(known, dict) else section
        if tables:
            road.create_tables()
            if judged:
                road.create_view()
        return road

    yield make
    for road in made:
        road.catalog.close()


@pytest.fixture
def road(make_road) -> Road:
    return make_road(partitions=2)


@pytest.fixture
def cluster_road(make_road, spark_cluster, s3, postgres_url) -> Road:
    """A road whose tasks run in executors of a cluster, with its catalog in PostgreSQL and its files in a bucket.

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
    return make_road(
        partitions=2,
        ledger={"catalog": postgres_url, "files": s3.files(uuid.uuid4().hex)},
        spark={"master": spark_cluster.url, "settings": settings, "cache": "1MB"},
    )
