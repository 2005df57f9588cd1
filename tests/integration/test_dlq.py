"""`oncehouse dlq` on real Kafka: list, show, replay once whatever is killed, purge."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid

import pytest
import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from oncehouse.cli.app import run_command
from oncehouse.errors import ConfigurationError, FencedError, PermanentError, TransientError
from oncehouse.messaging.failure_policy import FailedMessage, OutgoingMessage
from oncehouse.messaging.message import FAILED_AT, MESSAGE_ID, ORIGIN, Message
from oncehouse.messaging.retries import dead_letter_store
from oncehouse.messaging.retries.kafka_retry_broker import KafkaRetryBroker, read_to_end
from oncehouse.messaging.retries.retry_topics import DeadLetterTopic

HOSTILE = b"\x1b[31mred\x07 \xff\xfe [bold]x[/bold]\r\nsecond line"


class Place:
    def __init__(self, kafka, topic, tmp_path):
        self.servers = kafka.bootstrap_servers
        self.source = topic(partitions=2)
        self.file = tmp_path / "messaging.yaml"
        self.file.write_text(f"kafka: {{bootstrap_servers: '{self.servers}'}}\n")
        self.broker = KafkaRetryBroker(bootstrap_servers=self.servers, group="g")
        self.policy = DeadLetterTopic()
        self.policy.open(self.source, self.broker)

    def fail(
        self, count, *, error="ValueError: no", start=0, value=None, headers=(), failed_at=1_700_000_000.0
    ):
        self.policy.divert([
            FailedMessage(
                message=Message(
                    topic=self.source,
                    partition=offset % 2,
                    offset=offset,
                    key=b"k%d" % offset,
                    value=b"v%d" % offset if value is None else value,
                    headers=headers,
                    timestamp_ms=1_600_000_000_000,
                ),
                error=error,
                failed_at=failed_at,
            )
            for offset in range(start, start + count)
        ])  # fmt: skip

    def read(self, topic, partitions=2):
        reader = Consumer({
            "bootstrap.servers": self.servers,
            "group.id": uuid.uuid4().hex,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        })  # fmt: skip
        reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found = list(read_to_end(reader, topic))
        reader.close()
        return found

    def ask(self, capsys, *arguments, code=0):
        capsys.readouterr()
        assert run_command(["dlq", *arguments]) == code
        answer = capsys.readouterr()
        return answer.out if code == 0 else answer.err


@pytest.fixture
def place(kafka, topic, tmp_path):
    place = Place(kafka, topic, tmp_path)
    yield place
    place.broker.close()


def test_letters_are_listed_by_error_and_shown_without_harm(place, capsys):
    place.fail(3)
    place.fail(1, error="KeyError: \x1b[2Jgone", start=3, value=HOSTILE, headers=(("trace", b"\x1b]0;x"),))
    far = OutgoingMessage(
        topic=f"{place.source}.dlq", partition=0, key=None, value=b"", headers=((FAILED_AT, b"9" * 18),)
    )
    place.broker.send([far])
    out = place.ask(capsys, "list", place.source, str(place.file))
    assert "\x1b" not in out
    assert re.search(r"^ValueError +3 +0$", out, re.MULTILINE)
    assert f"{place.source}.dlq/1/1" in out
    assert f"from {place.source}/1/3" in out
    asked = json.loads(
        place.ask(capsys, "list", f"{place.source}.dlq", str(place.file), "--json", "--error", "KeyError")
    )
    assert asked["errors"] == {"KeyError": {"letters": 1, "replayed": 0}}
    (newest,) = asked["newest"]
    assert (newest["origin"], newest["attempts"]) == (f"{place.source}/1/3", 1)
    shown = place.ask(capsys, "show", newest["position"], str(place.file))
    assert "\x1b" not in shown
    assert "[bold]x[/bold]" in shown
    whole = json.loads(place.ask(capsys, "show", newest["position"], str(place.file), "--json"))
    assert whole["headers"] == [{"name": "trace", "value": "G10wO3g="}]
    assert place.ask(capsys, "list", place.source, str(place.file), "--limit", "0").count("\n") == 4


def test_a_replay_goes_to_the_first_topic_and_partition_with_what_an_inbox_knows_it_by(place, capsys):
    place.fail(4, headers=((MESSAGE_ID, b"id"),))
    place.fail(1, start=4, error="KeyError: x")
    say = place.ask(capsys, "replay", place.source, str(place.file), "--error", "ValueError")
    assert say == "4 sent, 0 replayed before\n"
    sent = place.read(place.source)
    assert sorted((one.partition(), one.key(), one.value()) for one in sent) == [
        (0, b"k0", b"v0"),
        (0, b"k2", b"v2"),
        (1, b"k1", b"v1"),
        (1, b"k3", b"v3"),
    ]
    first = next(one for one in sent if one.key() == b"k0")
    assert dict(first.headers()) == {
        MESSAGE_ID: b"id",
        ORIGIN: f"{place.source}/0/0".encode(),
        "oncehouse-origin-time": b"1600000000000",
    }
    again = json.loads(place.ask(capsys, "replay", place.source, str(place.file), "--json"))
    assert again == {"topic": f"{place.source}.dlq", "sent": 1, "known": 4, "strangers": 0}
    listed = json.loads(place.ask(capsys, "list", place.source, str(place.file), "--json"))
    assert listed["errors"]["ValueError"] == {"letters": 4, "replayed": 4}


def test_letters_of_nobody_knows_whom_go_only_where_somebody_says(place, capsys, topic, produce):
    stranger = topic(partitions=1)
    produce(stranger, [b"a", b"b"])
    say = place.ask(capsys, "replay", stranger, str(place.file), "--named")
    assert "0 sent" in say
    assert "2 left" in say
    assert "2 sent" in place.ask(capsys, "replay", stranger, str(place.file), "--named", "--to", place.source)
    assert sorted(one.value() for one in place.read(place.source)) == [b"a", b"b"]


KILLED = """
import os, signal, sys
from oncehouse.cli.app import run_command
from oncehouse.messaging.retries import dead_letter_store as store

store._DEAD_LETTERS_PER_TRANSACTION = 7
sent, left = store.DeadLetterStore._send, int(sys.argv[1])
produced = store._produce
calls = 0

def send(self, *arguments):
    sent(self, *arguments)
    if {after}:
        count()

def produce(producer, *arguments):
    produced(producer, *arguments)
    if not {after}:
        producer.flush(5)
        count()

def count():
    global calls
    calls += 1
    if calls == left:
        os.kill(os.getpid(), signal.SIGKILL)

store.DeadLetterStore._send, store._produce = send, produce
sys.exit(run_command(sys.argv[2:]))
"""


@pytest.mark.long
def test_a_replay_that_is_killed_again_and_again_sends_each_letter_once(place, capsys):
    place.fail(60)
    for after, left in ((False, 10), (True, 2)):
        code = KILLED.replace("{after}", str(after))
        arguments = ["dlq", "replay", place.source, str(place.file)]
        ended = subprocess.run(
            [sys.executable, "-c", code, str(left), *arguments], check=False, env=os.environ
        )
        assert ended.returncode == -9
    answer = json.loads(place.ask(capsys, "replay", place.source, str(place.file), "--json"))
    assert 0 < answer["sent"] < 60
    assert sorted(one.value() for one in place.read(place.source)) == sorted(b"v%d" % at for at in range(60))


def test_without_marks_a_killed_replay_would_send_letters_twice(place, capsys, monkeypatch):
    """The seeded defect that the test above is there to catch."""
    from oncehouse.messaging.retries.dead_letter_store import DeadLetterStore

    place.fail(3)
    monkeypatch.setattr(DeadLetterStore, "read_marks", lambda _: {})
    for _ in range(2):
        place.ask(capsys, "replay", place.source, str(place.file))
    assert len(place.read(place.source)) == 6


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KafkaError._FENCED, FencedError, "another replay of the same topic has started since"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigurationError, "Grant the user the missing permission"),
        (KafkaError.MSG_SIZE_TOO_LARGE, PermanentError, "max.message.bytes"),
        (KafkaError._TRANSPORT, TransientError, "completed work is not repeated"),
    ],
)
def test_what_cuts_a_replay_off_is_told_with_advice(code, kind, said):
    judged = dead_letter_store._wrap_error(KafkaException(KafkaError(code)), "the replay was cut off")
    assert type(judged) is kind
    assert said in str(judged)


def test_a_purge_says_what_goes_and_asks_first(place, capsys, monkeypatch):
    place.fail(4)
    place.fail(2, start=4, failed_at=1_700_009_999.0)
    refused = place.ask(capsys, "purge", place.source, str(place.file), code=2)
    assert "say --yes" in refused
    assert len(place.read(f"{place.source}.dlq")) == 6
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr(typer, "confirm", asked.append)
    place.ask(capsys, "purge", place.source, str(place.file), code=1)
    assert asked == [f"\nDelete 6 dead letters of {place.source}.dlq, 6 of them never replayed?"]
    assert len(place.read(f"{place.source}.dlq")) == 6
    said = place.ask(capsys, "purge", place.source, str(place.file), "--yes", "--until", "2023-11-15T00:00")
    assert "4 deleted" in said
    place.ask(capsys, "replay", place.source, str(place.file))
    rest = json.loads(place.ask(capsys, "purge", place.source, str(place.file), "--yes", "--json"))
    assert rest == {"topic": f"{place.source}.dlq", "deleted": 2, "never_replayed": 0}
    assert "no dead letters" in place.ask(capsys, "list", place.source, str(place.file))


def test_what_cannot_be_done_is_told(place, capsys):
    for arguments, said in (
        (["list", "no-such-topic"], "there is no topic no-such-topic.dlq"),
        (["show", "orders"], "is not a position"),
        (["list", "a/b"], "is not a topic name"),
        (["replay", place.source, "--to", "no-such-topic"], "there is no topic no-such-topic"),
        (["list", place.source, "--since", "soon"], "is not a time"),
        (["show", f"{place.source}.dlq/0/99"], "No dead letter at"),
        (["show", f"{place.source}.dlq/9/0"], "No dead letter at"),
    ):
        assert said in place.ask(capsys, *arguments[:2], str(place.file), *arguments[2:], code=2)
