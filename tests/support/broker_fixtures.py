"""The fixtures of a pipeline, over three brokers in place of the single one: for the tests that kill a leader."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from broker_cluster import BrokerCluster
from oncehouse.devstack.kafka import CLUSTER, KafkaServer
from oncehouse.devstack.stack import Stack


@pytest.fixture
def kafka(brokers: KafkaServer) -> KafkaServer:
    return brokers


@pytest.fixture
def cluster(stack: Stack, brokers: KafkaServer) -> Iterator[BrokerCluster]:
    del brokers
    cluster = BrokerCluster(stack)
    yield cluster
    for broker in CLUSTER:
        stack.start(broker)
    cluster.delete_topics()


@pytest.fixture
def topic(cluster: BrokerCluster) -> Callable[..., str]:
    return cluster.make_topic


@pytest.fixture
def produce(cluster: BrokerCluster) -> Callable[..., None]:
    return cluster.produce
