"""TLS and SASL on a real broker: librdkafka on the driver and Java in Spark read through both, or are refused."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from live_pipeline import PATIENCE_SECONDS
from oncehouse.common.leader_epochs import EpochEnd
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.pipeline.ingest import kafka_source
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics, client_settings, group_of, java_options
from oncehouse.pipeline.kafka_reader.access import SourceRange, TopicPlace, make_access
from oncehouse.pipeline.kafka_reader.range_reader import read_ranges
from secure_servers import PLAIN_PASSWORD, SCRAM_PASSWORD, USER, Authority, SecureKafka

MESSAGES = [f"message {number}".encode() for number in range(10)]


@pytest.fixture(scope="module")
def filled_topic(secure_kafka) -> str:
    name = f"events-{uuid.uuid4().hex[:8]}"
    settings = {"bootstrap.servers": secure_kafka.bootstrap_servers, "log_level": 0}
    admin = AdminClient(settings)  # its futures end with it
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(timeout=30)
    producer = Producer(settings)
    for message in MESSAGES:
        producer.produce(name, message)
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def refusal_of(monkeypatch) -> Callable[[Kafka], str]:
    """Ask until the client has tried to connect: a slow machine only takes longer."""
    monkeypatch.setattr(kafka_source, "TIMEOUT_SECONDS", 0.5)

    def ask(kafka: Kafka) -> str:
        topics, end = KafkaTopics(kafka), time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                topics.describe()
            except TransientError:
                continue
            except ConfigurationError as error:
                return str(error)
            raise AssertionError("the broker was trusted")
        raise AssertionError("nobody said why")

    return ask


def sasl(kafka: SecureKafka, topic: str, *, servers: str | None = None, **changes: str) -> Kafka:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": SCRAM_PASSWORD,
        "ssl.ca.location": str(kafka.authority.file),
    }
    options |= {name.replace("_", "."): value for name, value in changes.items()}
    return Kafka(bootstrap_servers=servers or kafka.sasl_servers, topics=[topic], options=options)


def mutual_tls(kafka: SecureKafka, topic: str) -> Kafka:
    client = kafka.authority.issue(f"client-{uuid.uuid4().hex[:8]}")
    options = {
        "security.protocol": "ssl",
        "ssl.ca.location": str(kafka.authority.file),
        "ssl.certificate.location": str(client.certificate),
        "ssl.key.location": str(client.key),
    }
    return Kafka(bootstrap_servers=kafka.tls_servers, topics=[topic], options=options)


def plain(kafka: SecureKafka, topic: str) -> Kafka:
    return sasl(kafka, topic, sasl_mechanisms="PLAIN", sasl_password=PLAIN_PASSWORD)


WAYS = {"SCRAM over TLS": sasl, "PLAIN over TLS": plain, "client certificates": mutual_tls}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_driver_and_spark_read_through_the_same_settings(way, secure_kafka, filled_topic, spark):
    kafka = way(secure_kafka, filled_topic)
    assert KafkaTopics(kafka).latest([(filled_topic, 0)]) == {(filled_topic, 0): len(MESSAGES)}
    read = (
        spark.read.format("kafka")
        .option("subscribe", filled_topic)
        .option("endingOffsets", "latest")
        .options(**java_options(kafka))
    )
    assert [bytes(row.value) for row in read.load().select("value").collect()] == MESSAGES


def read_directly(kafka: Kafka, **changes: object) -> list[bytes]:
    """As a task does, from what the driver hands to it."""
    access = replace(make_access(kafka), **changes)
    (name,) = kafka.topics
    topic_id = KafkaTopics(kafka).describe()[name].topic_id
    place = TopicPlace(topic=name, topic_id=topic_id, partition=0)
    asked = SourceRange(place=place, source=0, start=0, end=len(MESSAGES))
    blocks = read_ranges(pickle.loads(pickle.dumps(access)), [asked], headers=False)
    return [value for block in blocks for value in block.column("value").to_pylist()]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_task_reads_through_the_same_settings(way, secure_kafka, filled_topic):
    kafka = way(secure_kafka, filled_topic)
    assert read_directly(kafka) == MESSAGES
    assert SCRAM_PASSWORD not in repr(make_access(kafka))


def test_a_task_is_refused_with_a_wrong_password_and_does_not_tell_it(secure_kafka, filled_topic):
    # The broker closes the connection, and what it says may be overtaken by that.
    said = "does not let a task in|socket disconnected"
    with pytest.raises((ConfigurationError, TransientError), match=said) as caught:
        read_directly(sasl(secure_kafka, filled_topic), password="c4nary-wrong", patience_seconds=3.0)
    assert "c4nary" not in str(caught.value)


@pytest.mark.parametrize("case", ["another authority", "another host"])
def test_a_task_trusts_no_other_broker(case, secure_kafka, filled_topic, tmp_path):
    changes = {
        "another authority": {"ca_file": str(Authority(tmp_path, "other").file)},
        "another host": {"bootstrap_servers": secure_kafka.sasl_servers.replace("127.0.0.1", "localhost")},
    }
    with pytest.raises(TransientError, match=r"nothing of topic .* certificate verify failed"):
        read_directly(sasl(secure_kafka, filled_topic), patience_seconds=3.0, **changes[case])


def test_options_that_a_task_does_not_know_are_refused_by_name():
    kafka = Kafka(bootstrap_servers="127.0.0.1:9", topics=["a"], options={"broker.address.family": "v4"})
    with pytest.raises(
        ConfigurationError, match=r"options broker\.address\.family; remove them, or set .*connector"
    ):
        make_access(kafka)
    options = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "GSSAPI"}
    with pytest.raises(ConfigurationError, match="cannot log in by GSSAPI"):
        make_access(Kafka(bootstrap_servers="127.0.0.1:9", topics=["a"], options=options))


def test_an_authority_that_does_not_vouch_for_the_broker_is_refused(
    secure_kafka, filled_topic, tmp_path, refusal_of
):
    other = Authority(tmp_path, "other")
    refusal = refusal_of(sasl(secure_kafka, filled_topic, ssl_ca_location=str(other.file)))
    assert "certificate verify failed" in refusal
    assert "ssl.ca.location" in refusal


def test_a_host_that_the_brokers_certificate_does_not_name_is_refused(secure_kafka, filled_topic, refusal_of):
    servers = secure_kafka.sasl_servers.replace("127.0.0.1", "localhost")
    refusal = refusal_of(sasl(secure_kafka, filled_topic, servers=servers))
    assert "certificate verify failed" in refusal
    assert "name the hosts" in refusal


def test_a_wrong_password_is_refused_without_telling_it(secure_kafka, filled_topic, refusal_of):
    refusal = refusal_of(sasl(secure_kafka, filled_topic, sasl_password="c4nary-wrong"))
    assert "authentication failed" in refusal.lower()
    assert "c4nary" not in refusal


@pytest.fixture
def own_groups_alone(secure_kafka) -> Iterator[None]:
    """Groups are closed to all but the one user, who may read those of the pipeline `shop`."""
    admin = AdminClient({"bootstrap.servers": secure_kafka.bootstrap_servers, "log_level": 0})

    def allow(user: str, operation: AclOperation, group: str, pattern: ResourcePatternType) -> AclBinding:
        return AclBinding(
            ResourceType.GROUP, group, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW
        )

    rules = [
        allow("nobody", AclOperation.ALL, "*", ResourcePatternType.LITERAL),
        allow(USER, AclOperation.READ, group_of("shop"), ResourcePatternType.PREFIXED),
    ]
    for future in admin.create_acls(rules).values():
        future.result(timeout=30)
    try:
        yield
    finally:
        every = AclBindingFilter(
            ResourceType.GROUP,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for future in admin.delete_acls([every]).values():
            future.result(timeout=30)


@pytest.mark.usefixtures("own_groups_alone")
@pytest.mark.parametrize("group", [group_of("shop"), "closed"])
def test_leader_epochs_are_answered_for_by_the_rights_that_the_docs_ask_for(
    secure_kafka, filled_topic, group
):
    """And where the group is closed too: the leaders answer without its coordinator."""
    kafka = sasl(secure_kafka, filled_topic)
    topics = KafkaTopics(kafka, group=group)
    here = filled_topic, 0
    assert topics.epoch_ends({here: 0}) == {here: EpochEnd(epoch=0, end=len(MESSAGES))}


@pytest.mark.usefixtures("own_groups_alone")
def test_the_groups_of_others_are_closed_meanwhile(secure_kafka, filled_topic):
    """The client's own group fails as it does for a user without the right."""
    consumer = Consumer(client_settings(sasl(secure_kafka, filled_topic)) | {"group.id": "closed"})
    end, code = time.monotonic() + PATIENCE_SECONDS, None
    try:
        consumer.assign([TopicPartition(filled_topic, 0, len(MESSAGES))])
        while code != KafkaError.GROUP_AUTHORIZATION_FAILED and time.monotonic() < end:
            message = consumer.poll(0.5)
            code = message.error().code() if message is not None and message.error() else None
    finally:
        consumer.close()
    assert code == KafkaError.GROUP_AUTHORIZATION_FAILED
