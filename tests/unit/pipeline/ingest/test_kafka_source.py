"""The source's pure half: ranges out of offset logs, Kafka's two spellings, and what must stop a pipeline."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from oncehouse.common.leader_epochs import Unanswered
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import ConfigurationError, DataLossError, OncehouseError, TransientError
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.ingest import kafka_source
from oncehouse.pipeline.ingest.kafka_source import (
    KafkaTopics,
    TopicFacts,
    check_topics,
    java_options,
    read_ranges,
    reader_options,
    starting_positions,
)
from oncehouse.pipeline.ingest.log_history import LogEnd

SERVERS = "127.0.0.1:9092"


def write_log(checkpoint: Path, number: int, offsets: dict[str, dict[str, int]]) -> Path:
    path = checkpoint / "offsets" / str(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offsets)}', encoding="utf-8")
    return path


def span(partition: int, start: int, end: int, topic: str = "events") -> OffsetRange:
    return OffsetRange(topic=topic, partition=partition, start=start, end=end)


def test_the_first_micro_batch_starts_at_the_ledgers_offsets(tmp_path):
    write_log(tmp_path, 0, {"events": {"0": 10, "1": 7}})
    starting = {("events", 0): 4, ("events", 1): 7}
    assert read_ranges(tmp_path, 0, starting) == (span(0, 4, 10), span(1, 7, 7))


def test_a_later_micro_batch_starts_where_the_one_before_ended(tmp_path):
    write_log(tmp_path, 3, {"events": {"0": 10}})
    write_log(tmp_path, 4, {"events": {"0": 25}})
    assert read_ranges(tmp_path, 4, {("events", 0): 0}) == (span(0, 10, 25),)


def test_a_partition_added_meanwhile_starts_at_its_beginning(tmp_path):
    write_log(tmp_path, 0, {"events": {"0": 10}})
    write_log(tmp_path, 1, {"events": {"0": 10, "1": 3}})
    assert read_ranges(tmp_path, 1, {("events", 0): 0}) == (span(0, 10, 10), span(1, 0, 3))


def test_ranges_come_in_the_order_of_topics_and_partitions(tmp_path):
    write_log(tmp_path, 0, {"b": {"10": 1, "9": 1}, "a": {"0": 1}})
    starting = {("b", 10): 0, ("b", 9): 0, ("a", 0): 0}
    assert [(found.topic, found.partition) for found in read_ranges(tmp_path, 0, starting)] == [
        ("a", 0),
        ("b", 9),
        ("b", 10),
    ]


@pytest.mark.parametrize(
    "text", ["", "v1\n", "v1\n{}\n", "v1\n{}\n{", "v1\n{}\n[1]", 'v1\n{}\n{"events": {"x": 1}}', "v1\n{}\n3"]
)
def test_a_damaged_offset_log_makes_the_stream_start_again(tmp_path, text):
    write_log(tmp_path, 0, {"events": {"0": 10}}).write_text(text, encoding="utf-8")
    with pytest.raises(TransientError, match="offset log 0"):
        read_ranges(tmp_path, 0, {("events", 0): 0})


def test_a_missing_offset_log_makes_the_stream_start_again(tmp_path):
    write_log(tmp_path, 1, {"events": {"0": 10}})
    with pytest.raises(TransientError, match="offset log 0"):
        read_ranges(tmp_path, 1, {("events", 0): 0})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_in_an_offset_log_are_taken_for_something_else(tmp_path, text):
    write_log(tmp_path, 0, {}).write_bytes(b"v1\n{}\n" + text)
    try:
        found = read_ranges(tmp_path, 0, {})
    except TransientError:
        return
    assert isinstance(json.loads(text.splitlines()[0]), dict)
    assert all(isinstance(one.end, int) for one in found)


FACTS = {"events": TopicFacts(topic="events", topic_id="first", partitions=2, replicas=1)}


def test_a_topic_whose_id_has_changed_stops_the_pipeline():
    with pytest.raises(DataLossError, match="events was deleted and created again"):
        check_topics(FACTS, {"events": "another"}, {}, {})


def test_offsets_deleted_before_they_were_read_stop_the_pipeline_and_are_named():
    positions, earliest = {("events", 1): 5}, {("events", 0): 0, ("events", 1): 9}
    with pytest.raises(DataLossError, match=r"partition 1: offsets 5 to 8 .*\(4 records"):
        check_topics(FACTS, {"events": "first"}, positions, earliest)


@pytest.mark.parametrize("earliest", [{("events", 1): 5}, {("events", 1): 0}, {}])
def test_a_topic_that_still_has_what_was_not_read_is_fine(earliest):
    check_topics(FACTS, {"events": "first", "gone": "x"}, {("events", 1): 5}, earliest)


def test_known_partitions_go_on_and_new_ones_start_at_their_earliest():
    earliest = {("events", 0): 2, ("events", 1): 3}
    assert starting_positions(FACTS, {("events", 0): 40}, earliest) == {("events", 0): 40, ("events", 1): 3}


def test_sasl_and_tls_are_spelled_as_the_java_client_wants_them():
    kafka = Kafka(
        bootstrap_servers=SERVERS,
        topics=["events"],
        options={
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "me",
            "sasl.password": SecretStr('a"b\\c'),
            "ssl.ca.location": "/etc/ca.pem",
        },
    )
    assert java_options(kafka) == {
        "kafka.bootstrap.servers": SERVERS,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="me" password="a\\"b\\\\c";',
        "kafka.ssl.truststore.location": "/etc/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
    }


@pytest.mark.parametrize("spelling", ["sasl.mechanism", "sasl.mechanisms"])
def test_scram_has_a_login_module_of_its_own(spelling):
    options = {"security.protocol": "sasl_ssl", spelling: "SCRAM-SHA-512", "sasl.username": "me"}
    options["sasl.password"] = "secret"
    found = java_options(Kafka(bootstrap_servers=SERVERS, topics=["events"], options=options))
    assert found["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert ".scram.ScramLoginModule " in found["kafka.sasl.jaas.config"]


def test_an_option_that_kafka_does_not_know_is_the_users_to_correct():
    kafka = Kafka(bootstrap_servers=SERVERS, topics=["events"], options={"no.such.option": "1"})
    with pytest.raises(ConfigurationError, match=r"no\.such\.option"):
        KafkaTopics(kafka)


def test_a_partition_added_to_a_known_topic_must_still_begin_at_its_beginning():
    with pytest.raises(DataLossError, match="partition 1: offsets 0 to 999"):
        check_topics(FACTS, {"events": "first"}, {("events", 0): 5}, {("events", 0): 0, ("events", 1): 1000})
    # A topic that was never read begins where it begins.
    check_topics(FACTS, {}, {}, {("events", 0): 7, ("events", 1): 1000})


REFUSED_SECURITY = {
    "a certificate on a plain line": {"ssl.ca.location": "/ca.pem"},
    "a certificate on a plain line with a user": {
        "security.protocol": "SASL_PLAINTEXT",
        "ssl.ca.location": "/ca.pem",
    },
    "a password that nobody asks for": {"security.protocol": "SSL", "sasl.password": "x"},
    "no check of certificates": {
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": "false",
    },
    "a protocol that there is not": {"security.protocol": "TLS"},
}


@pytest.mark.parametrize("options", REFUSED_SECURITY.values(), ids=REFUSED_SECURITY)
def test_settings_that_look_secure_and_are_not_are_refused(options):
    with pytest.raises(ConfigurationError, match=r"security\.protocol|certificate\.verification"):
        Kafka(bootstrap_servers=SERVERS, topics=["events"], options=options)


def test_a_client_certificate_travels_by_its_bytes(tmp_path):
    (tmp_path / "c.pem").write_text("certificate")
    (tmp_path / "k.pem").write_text("-----BEGIN PRIVATE KEY-----")
    options = {
        "security.protocol": "SSL",
        "ssl.certificate.location": str(tmp_path / "c.pem"),
        "ssl.key.location": str(tmp_path / "k.pem"),
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert java_options(Kafka(bootstrap_servers=SERVERS, topics=["events"], options=options)) == {
        "kafka.bootstrap.servers": SERVERS,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "certificate",
        "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize("kind", ["RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY"])
def test_a_key_that_java_cannot_read_is_refused_with_the_command_that_converts_it(kind, tmp_path):
    (tmp_path / "k.pem").write_text(f"-----BEGIN {kind}-----")
    options = {
        "security.protocol": "SSL",
        "ssl.certificate.location": str(tmp_path / "k.pem"),
        "ssl.key.location": str(tmp_path / "k.pem"),
    }
    kafka = Kafka(bootstrap_servers=SERVERS, topics=["events"], options=options)
    with pytest.raises(ConfigurationError, match="openssl pkcs8 -topk8 -nocrypt"):
        java_options(kafka)
    missing = options | {"ssl.certificate.location": str(tmp_path / "absent.pem")}
    with pytest.raises(ConfigurationError, match=r"ssl\.certificate\.location .* cannot be read"):
        java_options(Kafka(bootstrap_servers=SERVERS, topics=["events"], options=missing))


def test_fetches_at_the_end_of_a_topic_are_answered_at_once_unless_the_user_says_otherwise():
    def options_with(**own: str) -> dict[str, str]:
        return reader_options(Kafka(bootstrap_servers=SERVERS, topics=["events"], options=own))

    # Kafka's own default of 500 ms would be waited for in each partition of an epoch.
    assert int(options_with()["kafka.fetch.max.wait.ms"]) < 100
    theirs = options_with(**{"fetch.wait.max.ms": "250"})
    assert theirs["kafka.fetch.max.wait.ms"] == "250"
    assert "kafka.fetch.wait.max.ms" not in theirs


class LeaderlessAdmin:
    """A broker whose new topic has no leader for the first few questions."""

    def __init__(self, refusals: int, code: int = KafkaError.NOT_LEADER_FOR_PARTITION) -> None:
        self.refusals, self.code = refusals, code
        self.asked = 0

    def poll(self, _timeout: float) -> int:
        return 0

    def list_offsets(self, asked, *, request_timeout, isolation_level):
        self.asked += 1
        answer: Future[object] = Future()
        if self.asked <= self.refusals:
            answer.set_exception(KafkaException(KafkaError(self.code)))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(asked, answer)


def ask_leaderless(monkeypatch, admin: LeaderlessAdmin):
    monkeypatch.setattr(kafka_source, "_LEADER_SECONDS", 0.0)
    topics = KafkaTopics(Kafka(bootstrap_servers=SERVERS, topics=("events",)))
    topics._admin = admin
    return topics.latest([("events", 0)])


def test_a_topic_that_was_just_made_is_asked_again_until_it_has_a_leader(monkeypatch):
    assert ask_leaderless(monkeypatch, LeaderlessAdmin(3)) == {("events", 0): 7}


def test_a_topic_that_never_gets_a_leader_is_an_error_that_may_pass(monkeypatch):
    with pytest.raises(TransientError):
        ask_leaderless(monkeypatch, LeaderlessAdmin(1000))


def test_other_refusals_are_not_asked_again(monkeypatch):
    admin = LeaderlessAdmin(1000, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigurationError):
        ask_leaderless(monkeypatch, admin)
    assert admin.asked == 1


class Answers:
    """An admin client whose leaders answer one after the other with these offsets."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = list(offsets)

    def poll(self, timeout: float) -> int:
        return 0

    def list_offsets(self, asked, **_):
        found: Future[object] = Future()
        found.set_result(SimpleNamespace(offset=self._offsets.pop(0), leader_epoch=4))
        return dict.fromkeys(asked, found)


def ask(monkeypatch, *offsets: int) -> dict[tuple[str, int], LogEnd]:
    monkeypatch.setattr(kafka_source, "_LEADER_SECONDS", 0.0)
    topics = KafkaTopics(Kafka(bootstrap_servers="127.0.0.1:9", topics=["events"]))
    monkeypatch.setattr(topics, "_admin", Answers(*offsets))
    return topics.ends([("events", 0)])


def test_a_leader_that_has_just_died_is_asked_for_again(monkeypatch):
    assert ask(monkeypatch, -1001, -1001, 60) == {("events", 0): LogEnd(offset=60, leader_epoch=4)}


def test_an_offset_that_is_none_is_no_end_of_a_log(monkeypatch):
    with pytest.raises(TransientError, match="does not answer"):
        ask(monkeypatch, *[-1001] * 10)


def ask_unanswered(monkeypatch, code: int) -> Exception:
    def ask_nobody(*_args, **_options):
        raise Unanswered(("clicks", 1), KafkaError(code))

    monkeypatch.setattr(kafka_source, "ask_epoch_ends", ask_nobody)
    topics = KafkaTopics(Kafka(bootstrap_servers="127.0.0.1:9", topics=["clicks", "events"]))
    with pytest.raises(OncehouseError) as raised:
        topics.epoch_ends({("clicks", 1): 3, ("events", 0): 3})
    return raised.value


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._AUTO_OFFSET_RESET])
def test_a_broker_that_says_epochs_but_not_where_they_end_is_named(monkeypatch, code):
    error = ask_unanswered(monkeypatch, code)
    assert isinstance(error, TransientError)
    assert "topic clicks partition 1" in str(error)
    assert "OffsetsForLeaderEpoch" in str(error)


def test_the_topic_that_is_not_there_is_named_alone(monkeypatch):
    error = ask_unanswered(monkeypatch, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert isinstance(error, ConfigurationError)
    assert "has no topic 'clicks'" in str(error)
