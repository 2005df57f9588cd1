"""Declares to the etl scheduler how far the pipeline's tables have come, rows or not.

What is declared is a time of which no row can come any more, because all that was in Kafka before is in ClickHouse:
ClickHouse's clock is read, then the ends of Kafka's partitions; once all before those ends is settled in the ledger and
every row of it has arrived, that time less the lateness of the table's events is true, and stays so. So it needs no
lease, and a process that stood still does no harm with it. Records that wait for their schema hold it up where the
table's times are those of events.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.identifiers import PIPELINE_CONSUMER, quote_table
from oncehouse.errors import OncehouseError, PermanentError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.stats.table_progress import Arrival, read_arrival
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics, Positions

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Declare, Pipeline

_MOST_READINGS = 1000
_LAST_ID = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class SourceSnapshot:
    clock_ms: int
    """ClickHouse's time, before the ends were read."""
    ends: Positions
    """The offset after the last record of each partition; of one that has lost all of its records, none."""
    settled_before: int | None = None
    """All of it stands in epochs before this one; None: not all of it is settled yet."""


class SourceSnapshots:
    """Ends of Kafka that were seen, and when all before them has arrived. Pure."""

    def __init__(self) -> None:
        self._kept: list[SourceSnapshot] = []

    def add(self, reading: SourceSnapshot) -> None:
        """The oldest of those that are not settled stays, however long the rest takes."""
        if len(self._kept) >= _MOST_READINGS:
            settled = [one for one in self._kept if one.settled_before is not None]
            others = [one for one in self._kept if one.settled_before is None]
            self._kept = [*settled[::2], *others[::2]]
        self._kept.append(reading)

    def settle(self, arrival: Arrival) -> None:
        """Note of which readings all is settled by now."""
        self._kept = [
            replace(one, settled_before=arrival.next_epoch)
            if one.settled_before is None and _is_settled(one.ends, arrival.positions)
            else one
            for one in self._kept
        ]

    def reached_ms(self, arrival: Arrival, table: str, *, waits_count: bool) -> int | None:
        """The latest time before which all of Kafka has arrived in the table. `waits_count`: records that wait for
        their schema have not."""
        missing = arrival.missing.get(table)
        if waits_count and arrival.waiting is not None:
            missing = min(missing if missing is not None else arrival.waiting, arrival.waiting)
        arrived = (
            one.clock_ms
            for one in self._kept
            if one.settled_before is not None and (missing is None or one.settled_before <= missing)
        )
        return max(arrived, default=None)

    def forget(self, before_ms: int) -> None:
        self._kept = [one for one in self._kept if one.clock_ms >= before_ms]


def _is_settled(ends: Positions, positions: Mapping[tuple[str, int], int]) -> bool:
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())


class ProgressDeclarer:
    """Keeps the declarations of a pipeline's tables going, on a thread of its own."""

    def __init__(
        self, pipeline: Pipeline, catalog: Catalog, topics: KafkaTopics, *, say: Callable[[str], None]
    ) -> None:
        self._declared = tuple((table.name, table.declare) for table in pipeline.tables if table.declare)
        self._name = f"{PIPELINE_CONSUMER} {pipeline.pipeline}"
        self._client = connect(pipeline.clickhouse)
        self._catalog = catalog
        self._topics = topics
        self._say = say
        self._readings = SourceSnapshots()
        self._reported = ""
        self._due = dict.fromkeys((name for name, _ in self._declared), -math.inf)

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; then once more, for what has arrived meanwhile."""
        pause = min(declare.every for _, declare in self._declared)
        self.update()  # what a run that ends by itself is about
        while not stop.wait(pause):
            self.update()
        self.update(reads_kafka=False)

    def update(self, *, reads_kafka: bool = True) -> None:
        """Whatever fails is said once and tried again: the Facts wait meanwhile, and no row is in danger."""
        try:
            if reads_kafka:
                self._readings.add(self._read())
            arrival = read_arrival(self._catalog)
            self._readings.settle(arrival)
            # Asked again: what is missing is looked at after it is known what is settled.
            self._declare_all(read_arrival(self._catalog), at_once=not reads_kafka)
            self._reported = ""
        except (OncehouseError, TimeoutError) as error:
            what = str(error) or "Kafka did not answer in time"
            if what != self._reported:
                self._say(f"How far tables have come cannot be declared to the etl scheduler: {what}")
            self._reported = what

    def _read(self) -> SourceSnapshot:
        clock_ms = math.floor(self._client.now() * 1000)
        facts = self._topics.describe()
        partitions = [
            (topic, partition) for topic, one in facts.items() for partition in range(one.partitions)
        ]
        ends = self._topics.latest(partitions)
        empty = self._topics.earliest(ends)
        return SourceSnapshot(
            clock_ms=clock_ms,
            # A partition without records, or whose records are all gone, has nothing to settle.
            ends={partition: end for partition, end in ends.items() if end > empty[partition]},
        )

    def _declare_all(self, arrival: Arrival, *, at_once: bool) -> None:
        reached = []
        for table, declare in self._declared:
            upto_ms = self._readings.reached_ms(arrival, table, waits_count=declare.pos == "event")
            reached.append(upto_ms)
            if upto_ms is None or (not at_once and time.monotonic() < self._due[table]):
                continue
            self._due[table] = time.monotonic() + declare.every * 0.9
            # All before that time; what carries the very time itself may come yet.
            write_declaration(self._client, declare, upto_ms - round(declare.lateness * 1000) - 1, self._name)
        if reached and None not in reached:
            self._readings.forget(min(one for one in reached if one is not None))


def write_declaration(client: Client, declare: Declare, time_ms: int, consumer: str) -> None:
    """Ahead only, and not in another loader's place."""
    offsets = quote_table(declare.offsets)
    rows = client.query(
        "SELECT toUnixTimestamp64Milli(last.1), consumer, "  # noqa: S608 - quoted
        "rows > 0 OR generation > 0 OR hostid != '' OR lane != '' OR book != '' "
        f"FROM {offsets} WHERE topic = {{topic:String}}",
        {"topic": declare.topic},
    )
    known_ms, known_consumer, is_built = rows[0] if rows else (0, "", 0)
    if is_built:
        raise PermanentError(
            f"{declare.topic} in {declare.offsets} is a topic that `oncehouse etl` builds: a declaration would take it "
            "past its own history, so none was made. Let tables[].declare.topic name the topic of the source."
        )
    if known_consumer not in ("", consumer):
        raise PermanentError(
            f"The source {declare.topic} is declared in {declare.offsets} by {known_consumer!r} already: what one "
            f"loader has brought says nothing of another's rows. When that one is gone, `oncehouse etl declare "
            f"{declare.topic} --withdraw`; else give each a table and a source of its own."
        )
    if time_ms <= known_ms:
        return
    place = f"(fromUnixTimestamp64Milli(toInt64({time_ms})), toUInt64({_LAST_ID}))"
    client.command(
        f"INSERT INTO {offsets} (topic, last, next, consumer) "
        f"SELECT {{topic:String}}, {place}, {place}, {{consumer:String}}",
        {"topic": declare.topic, "consumer": consumer},
    )


def declared_tables(pipeline: Pipeline) -> Sequence[str]:
    """Tables of which it is declared how far they have come."""
    return [table.name for table in pipeline.tables if table.declare is not None]
