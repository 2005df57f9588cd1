"""Kafka's log is cut by an unclean election and filled again: what took the place of what was read is never skipped.

Three real brokers. The follower is stopped, the leader takes records that it alone has and that are read, the leader
dies, the follower leads without them, and other records are written over their offsets and beyond.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_cluster import BrokerCluster
from oncehouse.errors import DataLossError
from road import Road, make_event

FIRST = [make_event(number) for number in range(40)]
LOST = [make_event(number) for number in range(100, 120)]
OTHERS = [make_event(number) for number in range(200, 260)]


@pytest.fixture(scope="session")
def kafka(brokers):
    return brokers


@pytest.fixture
def cluster(stack, brokers) -> Iterator[BrokerCluster]:
    del brokers
    cluster = BrokerCluster(stack)
    yield cluster
    for broker in ("kafka-1", "kafka-2", "kafka-3"):
        stack.start(broker)
    cluster.delete_topics()


@pytest.fixture
def topic(cluster):
    return cluster.make_topic


@pytest.fixture
def produce(cluster):
    return cluster.produce


@pytest.fixture
def road(make_road) -> Road:
    return make_road(epoch={"max_rows": 30})


def read_what_will_be_lost(road: Road, cluster: BrokerCluster) -> None:
    """Offsets 0 to 39 are on both brokers, 40 to 59 on the leader alone; all of them are read."""
    road.send(FIRST)
    cluster.leave_follower_behind(road.topic)
    road.send(LOST)
    road.run()
    road.assert_exact()


def cut_and_fill(road: Road, cluster: BrokerCluster) -> None:
    """Offsets 40 to 99 hold other records than the ones that were read."""
    cluster.elect_the_one_behind(road.topic)
    road.send(OTHERS)
    cluster.bring_back(road.topic)


def cut_while_away(road: Road, cluster: BrokerCluster) -> None:
    read_what_will_be_lost(road, cluster)
    cut_and_fill(road, cluster)
    road.run()
    road.assert_exact()


@pytest.mark.scenario("log cut while the driver is away")
def test_a_log_that_was_cut_and_filled_while_the_driver_was_away_stops_it(road, cluster):
    with pytest.raises(DataLossError) as stopped:
        cut_while_away(road, cluster)
    said = str(stopped.value)
    assert f"Topic {road.topic} partition 0" in said
    assert "offsets 40 to 59" in said
