"""Consumers that come and go under load, by Kafka's newer group protocol too, whose rebalances take their time."""

from __future__ import annotations

from consumer_load import PARTITIONS, come_and_go_under_load


def test_three_consumers_come_and_go_by_the_newer_group_protocol(kafka, topic):
    come_and_go_under_load(
        kafka.bootstrap_servers, topic(partitions=PARTITIONS), {"group.protocol": "consumer"}
    )
