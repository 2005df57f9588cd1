"""kill -9 of relays while services write and roll back: everything committed arrives, in order, and nothing else does.

Real PostgreSQL, Kafka, writers and relays, each in a process of its own. The same with defects put into the relay, to
show that the oracle would find them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from live_pipeline import LivePipeline, wait_until
from oncehouse.messaging.message import MESSAGE_ID
from outbox_examples import check_order, open_outbox
from outbox_writer import FILL_COUNTERS, MAKE_COUNTERS

WRITER = Path(__file__).parents[1] / "support" / "outbox_writer.py"
RELAY = Path(__file__).with_name("defective_relay.py")
PARTITIONS = 4
DEATHS = ("outbox claimed:1", "outbox sent:3", "")


@dataclass
class Told:
    """What the writers say they did."""

    committed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Id → key and number."""
    rolled_back: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class OutboxSetup:
    url: str
    servers: str
    topic: str
    file: Path
    seed: int
    defect: str = ""
    relays: list[subprocess.Popen[bytes]] = field(default_factory=list)
    doomed: set[int] = field(default_factory=set)
    """Relays that will die by themselves."""
    kills: int = 0

    def start_relay(self, crash_at: str = "") -> subprocess.Popen[bytes]:
        log = (self.file.parent / "relays.log").open("ab")
        with log:
            started = subprocess.Popen(
                [sys.executable, str(RELAY), str(self.file)],
                env=os.environ | {"RELAY_DEFECT": self.defect, "ONCEHOUSE_CRASH_AT": crash_at},
                stdout=log,
                stderr=log,
            )
        if crash_at:
            self.doomed.add(started.pid)
        return started

    def start_writer(self, writer: int, rows: int) -> subprocess.Popen[bytes]:
        said = (self.file.parent / f"writer-{writer}.json").open("wb")
        with said:
            arguments = [self.url, self.topic, str(rows), str(writer), str(self.seed)]
            return subprocess.Popen([sys.executable, str(WRITER), *arguments], stdout=said)

    def ask(self, sql: str, *values: object) -> int:
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            found = connection.execute(sql, values).fetchone()
        return int(found[0])

    def count_waiting(self) -> int:
        return self.ask("SELECT count(*) FROM oncehouse_outbox")

    def is_at_work(self, relay: subprocess.Popen[bytes]) -> bool:
        held = "SELECT count(*) FROM oncehouse_bucket_leases WHERE holder LIKE %s"
        return relay.poll() is not None or self.ask(held, f"% pid {relay.pid} #%") > 0

    def kill_one(self, wait_seconds: float) -> None:
        """The longest-lived relay dies without a word while it is at work, and another is started in its place.

        Every second one dies by itself, by turns before anything is sent and after Kafka's acknowledgement, before it
        is written down.
        """
        dead = self.relays.pop(0)
        wait_until(lambda: self.is_at_work(dead), "a relay at work")
        with suppress(subprocess.TimeoutExpired):
            # One that is to die by itself needs rows, and the writers may not have begun.
            dead.wait(20 if dead.pid in self.doomed else wait_seconds)
        dead.send_signal(signal.SIGKILL)
        assert dead.wait() == -signal.SIGKILL, (self.file.parent / "relays.log").read_text()[-3000:]
        self.kills += 1
        self.relays.append(self.start_relay(DEATHS[self.kills % len(DEATHS)]))

    def play(self, *, rows: int, writers: int, kills: int, every_seconds: float) -> Told:
        """Let writers write and relays die, at least so often; then let the relays finish."""
        chance = random.Random(self.seed)
        self.relays = [self.start_relay(DEATHS[0])]
        # With buckets of its own before there are rows: else the other might have sent all of them.
        wait_until(lambda: self.is_at_work(self.relays[0]), "a relay at work")
        self.relays.append(self.start_relay())
        running = [self.start_writer(writer, rows // writers) for writer in range(writers)]
        try:
            while self.kills < kills or any(writer.poll() is None for writer in running):
                self.kill_one(every_seconds * chance.uniform(0.5, 1.5))
            assert [writer.wait() for writer in running] == [0] * writers
            for relay in [relay for relay in self.relays if relay.pid in self.doomed]:
                self.relays.remove(relay)
                relay.kill()
                relay.wait()
                self.relays.append(self.start_relay())
            wait_until(lambda: self.count_waiting() == 0, "an empty outbox")
            wait_until(lambda: all(self.is_at_work(relay) for relay in self.relays), "relays at work")
        finally:
            for process in (*running, *self.relays):
                process.terminate()
            codes = [relay.wait(timeout=60) for relay in self.relays]
        assert codes == [0, 0], (self.file.parent / "relays.log").read_text()[-3000:]
        return self.read_told(writers)

    def read_told(self, writers: int) -> Told:
        told = Told()
        for writer in range(writers):
            said = json.loads((self.file.parent / f"writer-{writer}.json").read_text())
            told.committed |= {one: (key, number) for one, key, number in said["committed"]}
            told.rolled_back |= set(said["rolled_back"])
        return told

    def read_kafka(self) -> list[str]:
        """The ids in the order in which they stand in each partition, one partition after the other."""
        settings = {"bootstrap.servers": self.servers, "group.id": "t", "enable.auto.commit": False}
        consumer = Consumer(settings)
        found: list[str] = []
        for partition in range(PARTITIONS):
            place = TopicPartition(self.topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=30)
            consumer.assign([place])
            mine: list[str] = []
            while len(mine) < end:
                messages = consumer.consume(10_000, timeout=1)
                mine += [dict(message.headers())[MESSAGE_ID].decode() for message in messages]
            found += mine
        consumer.close()
        return found


def judge(told: Told, arrived: list[str]) -> list[str]:
    """Everything that is wrong; nothing when each committed message arrived, in order by key, and no other."""
    wrong = [f"{one} was rolled back" for one in sorted(told.rolled_back & set(arrived))[:3]]
    wrong += [
        f"{one} was never written"
        for one in sorted(set(arrived) - told.rolled_back - set(told.committed))[:3]
    ]
    written: dict[int, int] = {}
    for key, _ in told.committed.values():
        written[key] = written.get(key, 0) + 1
    by_key: dict[int, list[int]] = {key: [] for key in written}
    for one in arrived:
        if one in told.committed:
            key, number = told.committed[one]
            by_key[key].append(number)
    problems = ((key, check_order(numbers, written[key])) for key, numbers in by_key.items())
    return wrong + [f"key {key}: {problem}" for key, problem in problems if problem]


@pytest.fixture
def make_setup(kafka, postgres_url, topic, tmp_path) -> Iterator[Callable[..., OutboxSetup]]:
    def make(name: str = "", **more: object) -> OutboxSetup:
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(MAKE_COUNTERS)
            connection.execute(FILL_COUNTERS)
        with open_outbox(postgres_url):
            pass
        file = tmp_path / "messaging.yaml"
        document = {
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "database": postgres_url,
            "outbox": {"relay": {"lease": "2s", "round_rows": 500, "longest_backoff": "500ms"}},
        }
        file.write_text(yaml.safe_dump(document))
        seed = int(os.environ.get("OUTBOX_SEED", "0")) or random.randrange(1 << 30)
        print(f"OUTBOX_SEED={seed}")
        return OutboxSetup(
            url=postgres_url,
            servers=kafka.bootstrap_servers,
            topic=name or topic(partitions=PARTITIONS),
            file=file,
            seed=seed,
            **more,
        )

    return make


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("rows", "writers", "kills", "every_seconds"),
    [pytest.param(4_000, 2, 2, 1.0, marks=pytest.mark.short), (200_000, 8, 20, 3.0)],
)
def test_committed_messages_arrive_in_order_and_are_in_the_table_once(
    make_pipeline, make_setup, rows, writers, kills, every_seconds
):
    live_pipeline: LivePipeline = make_pipeline(
        partitions=PARTITIONS, epoch={"max_rows": 100_000}, batch={"max_rows": 100_000}
    )
    live_pipeline.document["identity"] = {"headers": [MESSAGE_ID], "window": "60d"}
    setup: OutboxSetup = make_setup(live_pipeline.topic)
    told = setup.play(rows=rows, writers=writers, kills=kills, every_seconds=every_seconds)
    arrived = setup.read_kafka()
    assert judge(told, arrived) == []
    assert len(told.rolled_back) > rows / 20
    print(
        f"{len(told.committed)} committed, {len(told.rolled_back)} rolled back, {setup.kills} kills, ", end=""
    )
    print(f"{len(arrived) - len(told.committed)} repeats")
    live_pipeline.run()
    count, unique = live_pipeline.client.query(
        f"SELECT count(), uniqExact(project, product_id) FROM {live_pipeline.table}"
    ).result_rows[0]
    assert (count, unique) == (len(told.committed), len(told.committed))
    assert live_pipeline.counts().duplicate == len(arrived) - len(told.committed)
    assert not live_pipeline.findings()


@pytest.mark.parametrize(("defect", "found"), [("settle", "missing"), ("order", "came after")])
def test_a_relay_with_a_defect_is_found_out(make_setup, defect, found):
    setup: OutboxSetup = make_setup(defect=defect)
    told = setup.play(rows=2_000, writers=2, kills=3, every_seconds=0.5)
    wrong = judge(told, setup.read_kafka())
    assert any(found in one for one in wrong), wrong
