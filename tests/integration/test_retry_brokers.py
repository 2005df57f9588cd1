"""What the failure policy needs from its retry brokers, held by Kafka and by the brokers in memory alike."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.consumer import MemoryBroker
from oncehouse.messaging.failure_policy import FailedMessage, OutgoingMessage
from oncehouse.messaging.message import ERROR, ORIGIN, Message
from oncehouse.messaging.retries import kafka_retry_broker
from oncehouse.messaging.retries.kafka_retry_broker import (
    KafkaRetryBroker,
    wrap_creation_error,
    wrap_send_error,
)
from oncehouse.messaging.retries.retry_topics import RetryTopics
from retry_simulation import MemoryRetryBroker

AT = 1_700_000_000.0
PLACEMENT = OutgoingMessage(topic="t", partition=1, key=b"k", value=b"v", headers=(("h", b"1"), ("h", None)))


class KafkaBrokers:
    def __init__(self, kafka, topic, group):
        self.servers, self.make_topic, self.group = kafka.bootstrap_servers, topic, group
        self.broker = KafkaRetryBroker(bootstrap_servers=self.servers, group=group)

    def make(self, partitions):
        return self.make_topic(partitions=partitions)

    def commit(self, topic, partition, offset):
        reader = self._open()
        reader.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
        reader.close()

    def read(self, topic, partition):
        reader = self._open()
        reader.assign([TopicPartition(topic, partition, 0)])
        found = [
            (one.offset(), one.key(), one.value(), tuple(one.headers() or ()))
            for one in kafka_retry_broker.read_to_end(reader, topic)
        ]
        reader.close()
        return found

    def _open(self):
        return Consumer({
            "bootstrap.servers": self.servers,
            "group.id": self.group,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        })  # fmt: skip


class MemoryBrokers:
    def __init__(self):
        self.broker = MemoryRetryBroker()

    def make(self, partitions):
        name = f"events-{uuid.uuid4().hex[:8]}"
        self.broker.topics[name] = [[] for _ in range(partitions)]
        return name

    def commit(self, topic, partition, offset):
        self.broker.committed[topic, partition] = offset

    def read(self, topic, partition):
        log = self.broker.topics[topic][partition]
        return [(one.offset, one.key, one.value, one.headers) for one in log]


class ConsumersBroker:
    """The broker in memory that consumers are tested with."""

    def __init__(self):
        self.cluster = MemoryBroker()
        self.broker = self.cluster.broker("g")

    def make(self, partitions):
        name = f"events-{uuid.uuid4().hex[:8]}"
        self.cluster.create_topic(name, partitions)
        return name

    def commit(self, topic, partition, offset):
        self.cluster._group("g").committed[topic, partition] = (offset, "")

    def read(self, topic, partition):
        found = (one for one in self.cluster.messages(topic) if one.partition == partition)
        return [(one.offset, one.key, one.value, one.headers) for one in found]


@pytest.fixture(params=["simulation", "memory", "kafka"])
def brokers(request):
    if request.param != "kafka":
        yield {"simulation": MemoryBrokers, "memory": ConsumersBroker}[request.param]()
        return
    kafka, topic = request.getfixturevalue("kafka"), request.getfixturevalue("topic")
    brokers = KafkaBrokers(kafka, topic, f"group-{uuid.uuid4().hex[:8]}")
    yield brokers
    brokers.broker.close()


def test_a_topic_that_is_missing_has_no_partitions_until_it_is_made(brokers):
    source = brokers.make(3)
    assert brokers.broker.count_partitions(source) == 3
    assert brokers.broker.count_partitions(f"{source}.dlq") is None
    for _ in range(2):  # another consumer may make it first
        brokers.broker.create(f"{source}.dlq", partitions=3, source=source)
    assert brokers.broker.count_partitions(f"{source}.dlq") == 3


def test_messages_are_written_in_order_and_answered_with_their_offsets(brokers):
    source = brokers.make(2)
    sent = [replace(PLACEMENT, topic=source, value=b"%d" % at) for at in range(500)]
    assert brokers.broker.send(sent) == list(range(500))
    assert brokers.broker.send([replace(PLACEMENT, topic=source, key=None, value=None, headers=())]) == [500]
    found = brokers.read(source, 1)
    assert found[0] == (0, b"k", b"0", (("h", b"1"), ("h", None)))
    assert [value for _, _, value, _ in found[:500]] == [b"%d" % at for at in range(500)]
    assert found[500] == (500, None, None, ())
    assert brokers.read(source, 0) == []


def test_what_the_group_has_not_committed_is_unsettled(brokers):
    source = brokers.make(2)
    assert list(brokers.broker.read_uncommitted(source, 1)) == []
    brokers.broker.send([replace(PLACEMENT, topic=source, key=b"%d" % at) for at in range(4)])
    assert list(brokers.broker.read_uncommitted(source, 1)) == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3")]
    brokers.commit(source, 1, 3)
    assert list(brokers.broker.read_uncommitted(source, 1)) == [(3, b"3")]
    assert list(brokers.broker.read_uncommitted(source, 0)) == []


def test_keys_are_held_again_after_a_restart_and_let_go_when_their_message_is_settled(brokers):
    source = brokers.make(2)
    failed = Message(topic=source, partition=1, offset=0, key=b"k", value=b"v", timestamp_ms=1)
    later = replace(failed, offset=1)
    first = RetryTopics(delays=["1s"], order="key")
    first.open(source, brokers.broker)
    ours = {(topic, 1) for topic in (source, f"{source}.retry.1")}
    first.assigned(ours)
    first.divert([FailedMessage(message=failed, error="ValueError: no", failed_at=AT)])
    second = RetryTopics(delays=["1s"], order="key")
    second.open(source, brokers.broker)
    second.assigned(ours)
    assert second.find_blocked([later]) == [0]
    ((offset, key, value, headers),) = brokers.read(f"{source}.retry.1", 1)
    copy = Message(
        topic=f"{source}.retry.1", partition=1, offset=offset, key=key, value=value, headers=headers
    )
    assert (copy.header(ORIGIN), copy.header(ERROR)) == (f"{source}/1/0".encode(), b"ValueError: no")
    assert second.due_at(copy) == AT + 1
    brokers.commit(copy.topic, 1, 1)
    second.committed([copy])
    assert second.find_blocked([later]) == []


def test_kafka_makes_topics_that_take_the_largest_message_and_keep_dead_letters(kafka, kafka_admin, topic):
    from confluent_kafka.admin import ConfigResource, ResourceType

    options = {"max.message.bytes": "2000000", "cleanup.policy": "compact", "retention.ms": "-1"}
    source = topic(partitions=1, **options)
    broker = KafkaRetryBroker(bootstrap_servers=kafka.bootstrap_servers, group="g")
    RetryTopics(delays=[1]).open(source, broker)

    def setting(name, key):
        resource = ConfigResource(ResourceType.TOPIC, name)
        return kafka_admin.describe_configs([resource])[resource].result(30)[key].value

    largest = replace(PLACEMENT, topic=f"{source}.dlq", partition=0, value=b"x" * 1_999_000)
    assert broker.send([largest]) == [0]
    assert setting(f"{source}.dlq", "retention.ms") == "-1"
    assert setting(f"{source}.retry.1", "cleanup.policy") == "delete"
    assert setting(f"{source}.retry.1", "retention.ms") == "-1"
    assert setting(f"{source}.retry.1", "min.insync.replicas") == setting(source, "min.insync.replicas")


def test_a_message_that_kafka_does_not_take_is_refused_and_what_follows_is_not_written(kafka, topic):
    name = topic(partitions=1, **{"max.message.bytes": "2000"})
    broker = KafkaRetryBroker(bootstrap_servers=kafka.bootstrap_servers, group="g")
    sent = [replace(PLACEMENT, topic=name, partition=0, value=value) for value in (b"x" * 9000, b"after")]
    with pytest.raises(PermanentError, match=r"Nothing was committed.*max\.message\.bytes"):
        broker.send(sent)
    assert broker.send(sent[1:]) == [0]
    with pytest.raises(PermanentError, match=f"{name}/7 refuses a failed message: .*Unknown partition"):
        broker.send([replace(PLACEMENT, topic=name, partition=7)])


def test_brokers_that_do_not_answer_are_a_passing_failure(monkeypatch):
    monkeypatch.setattr(kafka_retry_broker, "SEND_SECONDS", 0.2)
    monkeypatch.setattr(kafka_retry_broker, "TIMEOUT_SECONDS", 0.2)
    broker = KafkaRetryBroker(bootstrap_servers="127.0.0.1:1", group="g")
    with pytest.raises(TransientError, match="has not acknowledged"):
        broker.send([PLACEMENT])
    with pytest.raises(TransientError, match="did not answer for the topic"):
        broker.count_partitions("t")
    with pytest.raises(TransientError, match="t/0 could not be read"):
        list(broker.read_uncommitted("t", 0))


def test_missing_rights_are_told_with_the_command_that_somebody_else_may_run():
    refused = wrap_creation_error(
        KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), "t.dlq", 3
    )
    assert isinstance(refused, ConfigurationError)
    assert "kafka-topics.sh --create --topic t.dlq --partitions 3" in str(refused)
    passing = wrap_creation_error(KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT)), "t.dlq", 3)
    assert isinstance(passing, TransientError)
    assert isinstance(wrap_send_error(KafkaError(KafkaError._MSG_TIMED_OUT), PLACEMENT), TransientError)


class ForgetfulProducer:
    """Takes messages and never reports on them; a fatal error is raised over the head of the report."""

    def produce(self, topic, **message):
        pass

    def poll(self, seconds):
        raise KafkaException(KafkaError(KafkaError._FATAL))

    def purge(self):
        pass


class ForgetfulShelf(KafkaRetryBroker):
    def _open_producer(self):
        return ForgetfulProducer()


def test_a_message_without_a_report_counts_as_not_written_and_holds_up_nobody_for_ever(monkeypatch):
    monkeypatch.setattr(kafka_retry_broker, "SEND_SECONDS", 0.01)
    monkeypatch.setattr(kafka_retry_broker, "_REPORT_SECONDS", 0.01)
    with pytest.raises(TransientError, match="has not acknowledged"):
        ForgetfulShelf(bootstrap_servers="127.0.0.1:9", group="g").send([PLACEMENT])
