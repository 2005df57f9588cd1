"""Runs of peers, and of oncehouse as its users start it, in processes of their own: to the end, or killed half-way.

A peer that reads a consumer group is done when the group's committed offsets are at the topic's end, for all of them
commit behind their inserts; it is then asked to end. The others end by themselves.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Consumer, KafkaException, TopicPartition

from environments import make_environment
from measure import Place, Topic, create_table, make_pipeline, write_pipeline
from oncehouse.config.pipeline import Epoch, Spark
from oncehouse.devstack.jars import connector_jars
from oncehouse.devstack.subprocesses import ONCEHOUSE, last_words, signal_tree, spark_settings, start_command
from traffic import PARTITIONS

HERE = Path(__file__).parent
PATIENCE_SECONDS = 1800.0
_SAMPLE_SECONDS = 0.05
# So often that it dies the moment its rows are seen, before it can tell Kafka.
_KILL_POLL_SECONDS = 0.001
_END_SECONDS = 30.0
# So that there is a half-way in a small topic too.
_LEAST_BATCHES = 8
_LEAST_EPOCHS = 5
USUAL_EPOCH = Epoch().max_rows


@dataclass(frozen=True, kw_only=True)
class Peer:
    name: str
    """What its figures are called."""
    label: str
    program: str
    environment: str | None = None
    """Its own, or none for that of oncehouse."""
    tuned: bool = True
    raw: bool = False
    dedups: bool = False

    @property
    def ends_itself(self) -> bool:
        return self.environment is None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a table holds."""

    rows: int
    distinct: int

    @property
    def doubled(self) -> int:
        return self.rows - self.distinct


def count(place: Place, table: str) -> Found:
    ((rows, distinct),) = place.client.query(f"SELECT count(), uniqExact(product_id) FROM {table}")
    return Found(rows=rows, distinct=distinct)


def make_plain_table(place: Place, table: str) -> None:
    """The columns of the events and the order of oncehouse's table, without its own two columns."""
    pipeline = make_pipeline(place, table)
    columns = ", ".join(f"{name} {type_}" for name, type_ in pipeline.source.fields.items())
    order = ", ".join(pipeline.identity.fields)
    place.client.command(f"CREATE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY ({order})")


class PeerCommand:
    """A peer on a topic, into a table of its own; to be started as often as it is killed."""

    def __init__(self, place: Place, peer: Peer, topic: Topic, table: str, warm: Topic | None = None) -> None:
        self.peer, self.topic, self.table = peer, topic, table
        self._place = place
        self._log = place.folder / f"{table}.log"
        self._scratch = place.folder / f"{table}.scratch"
        self._scratch.mkdir()
        make_plain_table(place, table)
        python = sys.executable if peer.environment is None else make_environment(peer.environment)
        self._words = [str(python), str(HERE / peer.program), json.dumps(self._task(warm))]

    def _task(self, warm: Topic | None) -> dict[str, Any]:
        address = urlsplit(self._place.stack.clickhouse.url)
        task: dict[str, Any] = {
            "servers": self._place.stack.kafka.bootstrap_servers,
            "topic": self.topic.name,
            "table": self.table,
            "host": address.hostname,
            "port": address.port,
        }
        if self.peer.environment is not None:
            batch_rows = min(100_000, self.topic.produced // _LEAST_BATCHES)
            return task | {
                "group": self.table,
                "tuned": self.peer.tuned,
                "raw": self.peer.raw,
                "batch_rows": batch_rows,
            }
        task |= {
            "jars": ",".join(map(str, connector_jars())),
            "scratch": str(self._scratch),
            "micro_batch_events": min(1_000_000, self.topic.produced // _LEAST_EPOCHS),
            "tuned": self.peer.tuned,
        }
        if warm is not None:
            make_plain_table(self._place, f"{self.table}_warm")
            task |= {"warm_topic": warm.name, "warm_table": f"{self.table}_warm"}
        return task

    def start(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return start_command(self._words, log=self._log, scratch=self._scratch)

    def read_started_at(self) -> float:
        """When it first polled in its newest life."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith('{"started_at"')]
        return float(json.loads(lines[-1])["started_at"])

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until everything is inserted; the process has ended then."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        if self.peer.ends_itself:
            process.wait(PATIENCE_SECONDS)
            require(process.returncode == 0, self.peer.label, self._log)
            return
        consumer = Consumer(
            {
                "bootstrap.servers": self._place.stack.kafka.bootstrap_servers,
                "group.id": self.table,
                "log_level": 0,
            }
        )
        while not _is_at_end(consumer, self.topic):
            require(process.poll() is None and time.monotonic() < ends_at, self.peer.label, self._log)
            time.sleep(_SAMPLE_SECONDS)
        consumer.close()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


class OwnCommand:
    """`oncehouse run` on a topic, as its users start it."""

    def __init__(
        self, place: Place, topic: Topic, table: str, *, words: Sequence[str] = (), **sections: Any
    ) -> None:
        self.topic, self.table = topic, table
        self._log = place.folder / f"{table}.log"
        self._scratch = place.folder / f"{table}.scratch"
        self._scratch.mkdir()
        pipeline = make_pipeline(
            place,
            topic,
            name=table,
            spark=Spark(settings=spark_settings(connector_jars(), self._scratch)),
            **sections,
        )
        create_table(place, pipeline)
        file = place.folder / f"{table}.yaml"
        write_pipeline(pipeline, file)
        self._words = [*ONCEHOUSE, "run", str(file), *words]

    def start(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return start_command(self._words, log=self._log, scratch=self._scratch)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        process.wait(PATIENCE_SECONDS)
        require(process.returncode == 0, "oncehouse", self._log)

    def last_words(self) -> str:
        return last_words(self._log)


def own_in_pieces(place: Place, topic: Topic, table: str) -> OwnCommand:
    """`run --once` in so many epochs that there is a half-way in a small topic too."""
    epoch = Epoch(max_rows=min(USUAL_EPOCH, topic.produced // _LEAST_EPOCHS))
    return OwnCommand(place, topic, table, words=["--once"], epoch=epoch)


def run_killed(place: Place, command: PeerCommand | OwnCommand) -> Found:
    """Kill it with -9, and all that it started, when half of the events are in the table; then run it to its end."""
    with command.start() as process:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while _rows(place, command.table) < command.topic.unique // 2:
            if process.poll() is not None or time.monotonic() > ends_at:
                raise SystemExit(f"No figures: {command.table} was not seen half-way; take more events")
            time.sleep(_KILL_POLL_SECONDS)
        signal_tree(process.pid, signal.SIGKILL)
    place.say(f"{command.table}: killed at {_rows(place, command.table):,} rows")
    with command.start() as process:
        command.wait(process)
    return count(place, command.table)


def require(fulfilled: bool, who: str, log: Path) -> None:
    if not fulfilled:
        raise SystemExit(f"No figures: {who} failed.\n{last_words(log)}")


def _rows(place: Place, table: str) -> int:
    ((rows,),) = place.client.query(f"SELECT count() FROM {table}")
    return int(rows)


def _is_at_end(consumer: Consumer, topic: Topic) -> bool:
    asked = [TopicPartition(topic.name, number) for number in range(PARTITIONS)]
    try:
        partitions: Sequence[TopicPartition] = consumer.committed(asked, 10)
    except KafkaException:
        return False  # the group's first commit has to find its place in the broker
    return sum(max(0, partition.offset) for partition in partitions) == topic.produced
