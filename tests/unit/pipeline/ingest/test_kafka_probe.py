"""What a look at Kafka finds: no answer, or partitions without a leader."""

from __future__ import annotations

from confluent_kafka.admin import PartitionMetadata, TopicMetadata

from oncehouse.config.pipeline import Kafka
from oncehouse.pipeline.ingest.kafka_probe import KafkaProbe, find_leaderless
from oncehouse.pipeline.ingest.kafka_source import reader_options


def make_topic(*leaders: int) -> TopicMetadata:
    topic = TopicMetadata()
    topic.topic = "orders"
    for number, leader in enumerate(leaders):
        partition = PartitionMetadata()
        partition.id, partition.leader = number, leader
        topic.partitions[number] = partition
    return topic


def test_partitions_without_a_leader_are_named():
    assert find_leaderless(make_topic(1, 2)) is None
    assert find_leaderless(make_topic(1, -1, 2, -1)) == "topic orders: no leader for partition 1, 3"


def test_a_broker_that_is_not_there_is_trouble():
    probe = KafkaProbe(
        Kafka(bootstrap_servers="127.0.0.1:9", topics=["orders"]), group="oncehouse", timeout_seconds=0.2
    )
    try:
        assert probe.find_trouble()
    finally:
        probe.close()


def test_options_of_fetching_are_for_sparks_source_alone():
    """librdkafka refuses a `fetch.max.bytes` below its `message.max.bytes`; Kafka's Java client takes it."""
    kafka = Kafka(bootstrap_servers="127.0.0.1:9", topics=["orders"], options={"fetch.max.bytes": "4096"})
    KafkaProbe(kafka, group="oncehouse", timeout_seconds=0.2).close()
    assert reader_options(kafka)["kafka.fetch.max.bytes"] == "4096"
