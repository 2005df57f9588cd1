"""The relay on real PostgreSQL and Kafka: what arrives and what is parked, outages, what idling costs, its commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import yaml
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from sqlalchemy import Engine

from bench_modules import load_benchmark
from live_pipeline import wait_until
from oncehouse.cli.app import run_command
from oncehouse.messaging import Relay, RelaySettings
from oncehouse.messaging.message import MESSAGE_ID
from oncehouse.messaging.outbox.status import OutboxStatus, read_status
from outbox_examples import TABLES, open_outbox, write

COMMAND = [sys.executable, "-c", "from oncehouse.cli.app import main; main()", "outbox"]


@pytest.fixture
def engine(postgres_url) -> Iterator[Engine]:
    with open_outbox(postgres_url) as engine:
        yield engine


@pytest.fixture
def make_relay(kafka, postgres_url, engine) -> Callable[..., Relay]:
    def make(**settings: object) -> Relay:
        return Relay(
            database=postgres_url,
            bootstrap_servers=kafka.bootstrap_servers,
            settings=RelaySettings(**{"longest_backoff": 0.2} | settings),
        )

    return make


@pytest.fixture
def file(kafka, postgres_url, tmp_path, engine):
    path = tmp_path / "messaging.yaml"
    path.write_text(
        yaml.safe_dump({"kafka": {"bootstrap_servers": kafka.bootstrap_servers}, "database": postgres_url})
    )
    return path


@pytest.fixture
def read_topic(kafka) -> Callable[[str], list[Message]]:
    def read(topic: str) -> list[Message]:
        consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "t", "enable.auto.commit": False}
        )
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            places = [TopicPartition(topic, partition, 0) for partition in partitions]
            ends = sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
            consumer.assign(places)
            found: list[Message] = []
            while len(found) < ends:
                found += consumer.consume(10_000, timeout=1)
            return found
        finally:
            consumer.close()

    return read


def read(engine: Engine) -> OutboxStatus:
    with engine.connect() as connection:
        return read_status(connection, TABLES)


def set_limit(admin: AdminClient, topic: str, size_bytes: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(timeout=30)


def murmur2(data: bytes) -> int:
    """The hash by which Java's producer chooses a partition, written down here from its definition."""
    mixer, mask = 0x5BD1E995, 0xFFFFFFFF
    value = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * mixer & mask
        part = (part ^ part >> 24) * mixer & mask
        value = value * mixer & mask ^ part
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * mixer & mask
    value = (value ^ value >> 13) * mixer & mask
    return value ^ value >> 15


def test_messages_arrive_whole_in_order_where_java_would_put_them(engine, make_relay, topic, read_topic):
    name = topic(partitions=5)
    keys = [f"customer {number}".encode() for number in range(40)]
    ids: dict[bytes, list[str]] = {key: [] for key in keys}
    for number in range(5):
        for key, message_id in zip(
            keys,
            write(engine, [(key, b"%d" % number) for key in keys], topic=name, headers='[["h","x"]]'),
            strict=True,
        ):
            ids[key].append(str(message_id))
    write(engine, [(b"gone", None)], topic=name)
    assert make_relay(round_rows=50).run(once=True).sent == 201
    messages = read_topic(name)
    assert len(messages) == 201
    for key in keys:
        mine = [message for message in messages if message.key() == key]
        assert [message.value() for message in mine] == [b"0", b"1", b"2", b"3", b"4"]
        assert {message.partition() for message in mine} == {(murmur2(key) & 0x7FFFFFFF) % 5}
        headers = [dict(message.headers()) for message in mine]
        assert [each[MESSAGE_ID].decode() for each in headers] == ids[key]
        assert all(each["h"] == b"x" for each in headers)
    assert next(message for message in messages if message.key() == b"gone").value() is None


def test_what_the_broker_refuses_parks_its_key_and_no_later_message_overtakes_it(
    engine, make_relay, topic, kafka_admin, read_topic, file, capsys
):
    name = topic(**{"max.message.bytes": "20000"})
    big, missing = b"x" * 50_000, f"{name}-missing"
    write(
        engine, [(b"a", b"0"), (b"a", big), (b"a", b"2"), (b"b", b"3"), (None, big), (b"c", b"4")], topic=name
    )
    write(engine, [(b"a", b"elsewhere"), (b"a", b"later")], topic=missing)
    write(engine, [(b"d", b"y" * 2_000_000), (b"d", b"5"), (b"e", b"6")], topic=name)
    done = make_relay().run(once=True)
    arrived = {message.value()[:10] for message in read_topic(name)}
    assert arrived == {b"0", b"3", b"4", b"6"}
    status = read(engine)
    assert (status.waiting, status.parked, status.behind, done.sent) == (0, 4, 3, 4)
    assert {"too large" in m.error or "Unknown topic" in m.error for m in status.parked_messages} == {True}
    # A person puts it right, and lets go what can go now.
    set_limit(kafka_admin, name, 1_000_000)
    kafka_admin.create_topics([NewTopic(missing, 1, 1)])[missing].result(timeout=30)
    assert run_command(["outbox", "retry", "--all", str(file)]) == 0
    make_relay().run(once=True)
    assert [len(m.value()) for m in read_topic(name) if m.key() == b"a"] == [1, 50_000, 1]
    assert [m.value() for m in read_topic(missing)] == [b"elsewhere", b"later"]
    kafka_admin.delete_topics([missing])[missing].result(timeout=30)
    (left,) = read(engine).parked_messages
    assert run_command(["outbox", "drop", "--id", left.id, str(file)]) == 0
    assert read(engine).parked == 1, "nothing is dropped without --yes"
    assert run_command(["outbox", "drop", "--id", left.id, "--yes", str(file)]) == 0
    make_relay().run(once=True)
    assert read_topic(name)[-1].value() == b"5"
    assert "let go: 4 messages, and 3 that waited" in capsys.readouterr().out


@pytest.mark.long
def test_a_broker_that_goes_away_parks_nothing_and_loses_nothing(
    engine, make_relay, topic, stack, read_topic
):
    name = topic()
    stop = threading.Event()
    relay = make_relay(send=1.0)
    thread = threading.Thread(target=lambda: relay.run(stop=stop))
    thread.start()
    try:
        write(engine, [(b"a", b"0")], topic=name)
        wait_until(lambda: read(engine).waiting == 0, "the first message")
        stack.kill("kafka")
        write(engine, [(b"a", b"1"), (b"a", b"2")], topic=name)
        wait_until(lambda: read(engine).attempts >= 2, "failures that are told")
        status = read(engine)
        assert (status.waiting, status.parked) == (2, 0)
        assert "did not take the messages" in status.last_error
        stack.start("kafka")
        wait_until(lambda: read(engine).waiting == 0, "what waited")
    finally:
        stop.set()
        thread.join()
    values = [message.value() for message in read_topic(name)]
    assert list(dict.fromkeys(values)) == [b"0", b"1", b"2"]


def test_an_idle_outbox_costs_fewer_than_two_statements_a_second(engine, kafka, postgres, postgres_url):
    port = postgres.place.ports["postgres"]
    with load_benchmark("statement_counter").StatementCounter(port) as counter:
        relay = Relay(
            database=postgres_url.replace(f":{port}/", f":{counter.port}/"),
            bootstrap_servers=kafka.bootstrap_servers,
        )
        stop = threading.Event()
        thread = threading.Thread(target=lambda: relay.run(stop=stop))
        thread.start()
        wait_until(lambda: any(one.asleep for one in read(engine).relays), "a relay asleep")
        assert counter.statements > 0
        time.sleep(1)
        before, seconds = counter.statements, 6
        time.sleep(seconds)
        cost = (counter.statements - before) / seconds
        stop.set()
        thread.join()
    assert cost < 2


def test_a_relay_that_is_terminated_drains_and_says_what_it_did(engine, topic, file, read_topic):
    name = topic()
    write(engine, [(b"a", b"%d" % number) for number in range(100)], topic=name)
    process = subprocess.Popen([*COMMAND, "relay", "--json", str(file)], stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: read(engine).waiting == 0 or process.poll() is not None, "an empty outbox")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["sent"], last["parked"]) == ("end", 100, 0)
    assert len(read_topic(name)) == 100
    assert read(engine).relays == ()


def test_the_commands_tell_how_the_outbox_stands(engine, topic, file, capsys):
    name = topic()
    assert run_command(["outbox", "status", str(file)]) == 0
    assert "none at work" in capsys.readouterr().out
    (bad, _) = write(engine, [(b"k\xff", b"x" * 2_000_000), (b"k\xff", b"1")], topic=name)
    assert run_command(["outbox", "relay", "--once", str(file)]) == 1
    told = capsys.readouterr()
    assert "oncehouse_outbox: sent 0" in told.out
    assert "2 messages were parked" in told.err
    assert run_command(["outbox", "status", str(file)]) == 0
    table = capsys.readouterr().out
    assert str(bad) in table
    assert "k\\xff" in table
    assert "Message size too large" in table
    assert run_command(["outbox", "status", "--json", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["waiting"], found["parked"], found["behind"]) == (0, 1, 1)
    assert found["parked_messages"][0]["id"] == str(bad)
    assert run_command(["outbox", "retry", str(file)]) == 2
    assert "Select parked messages: --id ID, --topic NAME, or --all" in capsys.readouterr().err
