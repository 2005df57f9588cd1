"""The source: Kafka's topics as the driver sees them, and Spark's stream over them.

The ledger's offsets are the truth; a checkpoint is scratch, created from them at every start of the stream.
What a micro-batch covers is read from that checkpoint's offset log and never guessed from rows, because
aborted transactions and compaction leave holes between offsets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ListOffsetsResultInfo, OffsetSpec

from oncehouse.common import kafka_client
from oncehouse.common.kafka_client import TIMEOUT_SECONDS, describe_error, plain_options
from oncehouse.common.kafka_security import convert_for_java
from oncehouse.common.leader_epochs import EpochEnd, Unanswered, ask_epoch_ends
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import ConfigurationError, DataLossError, OncehouseError, TransientError
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.ingest.kafka_retention import TopicSettings, read_settings
from oncehouse.pipeline.ingest.log_history import LogEnd
from oncehouse.pipeline.ingest.part_files import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Positions = dict[tuple[str, int], int]

GROUP = "oncehouse"

# The last two: a new leader knows its end, but not yet up to where all others follow it.
_NO_LEADER = {
    *("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART"),
    *("OFFSET_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"),
}
_LEADER_TRIES = 10
_LEADER_SECONDS = 0.2
# With 500 at a time, as Kafka's Java client has it, the broker works twice as much for the same records.
_POLLED_RECORDS = 10_000
# After every poll Spark asks where the partition begins and ends, on the connection on which the client has just asked
# for what comes next. At the end of the log the broker keeps that request for so long, and answers no other meanwhile:
# half a second by default, for each partition of every epoch that reads all there is.
_FETCH_WAIT_MILLISECONDS = 10


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    topic: str
    topic_id: str
    partitions: int
    replicas: int
    """Of the partition that has the fewest."""


class KafkaTopics:
    """What the broker says about the pipeline's topics. One client, kept open."""

    def __init__(self, kafka: Kafka, *, group: str = GROUP) -> None:
        """`group`: one that the user may read, for the client's own sake; no consumer joins it."""
        self.kafka = kafka
        self._group = group
        self._refusal: str | None = None
        try:
            self._admin = AdminClient(client_settings(kafka) | {"error_cb": self._notice})
        except KafkaException as error:
            raise ConfigurationError(f"source.kafka.options: {describe_error(error)}") from error

    @property
    def names(self) -> tuple[str, ...]:
        return self.kafka.topics

    def describe(self, *others: str) -> dict[str, TopicFacts]:
        """The pipeline's topics, or others.

        Raises ConfigurationError for a topic that is not there, TransientError for a broker that is away.
        """
        names = others or self.kafka.topics
        try:
            return self._describe(names)
        except TransientError as error:
            if not isinstance(error.__cause__, KafkaException) or _code(error.__cause__) != "_TIMED_OUT":
                raise
        # The client goes on asking the broker that it knows as the controller, also when that one is dead; it learns
        # of another one only from metadata that it is asked to fetch.
        self._learn_controller(names[0])
        return self._describe(names)

    def _describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        facts = {}
        futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=TIMEOUT_SECONDS)
        for topic, future in futures.items():
            try:
                found = future.result(timeout=TIMEOUT_SECONDS + 5)
            except KafkaException as error:
                raise self._wrapped(topic, error) from error
            facts[topic] = TopicFacts(
                topic=topic,
                topic_id=str(found.topic_id),
                partitions=len(found.partitions),
                replicas=min((len(one.replicas) for one in found.partitions), default=0),
            )
        return facts

    def _learn_controller(self, topic: str) -> None:
        try:
            self._admin.list_topics(topic, timeout=TIMEOUT_SECONDS)
        except KafkaException as error:
            raise self._wrapped(topic, error) from error

    def settings(self) -> dict[str, TopicSettings | None]:
        """How each topic keeps its records; None where the user may not know."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in self.kafka.topics]
        futures = self._admin.describe_configs(resources, request_timeout=TIMEOUT_SECONDS)
        found: dict[str, TopicSettings | None] = {}
        for resource, future in futures.items():
            try:
                entries = future.result(timeout=TIMEOUT_SECONDS + 5)
            except KafkaException as error:
                if "AUTHORIZATION" not in _code(error):
                    raise self._wrapped(resource.name, error) from error
                found[resource.name] = None
                continue
            found[resource.name] = read_settings({name: entry.value for name, entry in entries.items()})
        return found

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> Positions:
        return self._offsets(partitions, OffsetSpec.earliest())

    def latest(self, partitions: Iterable[tuple[str, int]]) -> Positions:
        return self._offsets(partitions, OffsetSpec.latest())

    def stable_ends(self, partitions: Iterable[tuple[str, int]]) -> Positions:
        """Up to where all transactions have ended: what a reader of committed records gets at most."""
        return self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def offsets_at(self, partitions: Iterable[tuple[str, int]], seconds: float) -> Positions:
        """The first offset of this time (seconds since 1970) or later; -1 where there is none."""
        return self._offsets(partitions, OffsetSpec.for_timestamp(int(seconds * 1000)))

    def ends(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogEnd]:
        """Where the logs end, and in which leader epoch their leaders say so."""
        return {
            place: LogEnd(offset=found.offset, leader_epoch=_known_epoch(found.leader_epoch))
            for place, found in self._ask_leaders(partitions, OffsetSpec.latest()).items()
        }

    def epoch_ends(self, leader_epochs: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], EpochEnd]:
        """Where the records of leader epochs end."""
        try:
            return ask_epoch_ends(
                client_settings(self.kafka), leader_epochs, group=self._group, timeout_seconds=TIMEOUT_SECONDS
            )
        except Unanswered as error:
            raise self._unanswered(error) from error
        except KafkaException as error:
            raise ConfigurationError(f"source.kafka.options: {describe_error(error)}") from error

    def _offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Positions:
        found = self._ask_leaders(partitions, spec, isolation)
        return {place: one.offset for place, one in found.items()}

    def _ask_leaders(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        offset_specs = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        if not offset_specs:
            return {}
        for _ in range(_LEADER_TRIES - 1):
            try:
                return self._ask_offsets(offset_specs, isolation)
            except OncehouseError as error:
                if (
                    not isinstance(error.__cause__, KafkaException)
                    or _code(error.__cause__) not in _NO_LEADER
                ):
                    raise
            # A topic that was just made has its leaders in a moment, and so has one whose broker went.
            time.sleep(_LEADER_SECONDS)
        return self._ask_offsets(offset_specs, isolation)

    def _ask_offsets(
        self, offset_specs: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel
    ) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        found = {}
        futures = self._admin.list_offsets(
            offset_specs, isolation_level=isolation, request_timeout=TIMEOUT_SECONDS
        )
        for partition, future in futures.items():
            try:
                answer = future.result(timeout=TIMEOUT_SECONDS + 5)
                found[partition.topic, partition.partition] = _require_offset(answer)
            except KafkaException as error:
                raise self._wrapped(partition.topic, error) from error
        return found

    def _notice(self, error: KafkaError) -> None:
        """The client goes on trying, and a call only times out: why the broker was refused, or refused us, is here."""
        text = str(error.str())
        if error.name() == "_AUTHENTICATION" or "certificate verify failed" in text:
            self._refusal = text

    def _unanswered(self, error: Unanswered) -> Exception:
        topic, partition = error.place
        wrapped = self._wrapped(topic, error)
        if not isinstance(wrapped, TransientError):
            return wrapped
        return TransientError(
            f"Kafka at {self.kafka.bootstrap_servers} says the leader epoch of topic {topic} partition {partition}, "
            f"but not where an earlier one ends ({describe_error(error)}). It is asked again. If that goes on, look "
            "whether it has a leader, and whether the brokers, and any proxy in front of them, answer Kafka's request "
            "OffsetsForLeaderEpoch."
        )

    def _wrapped(self, topic: str, error: KafkaException) -> Exception:
        code = _code(error)
        self._refusal = None
        self._admin.poll(0)
        if self._refusal is not None:
            return ConfigurationError(
                f"Kafka at {self.kafka.bootstrap_servers}: no secure connection ({self._refusal}). Check the user, the "
                "password and ssl.ca.location in source.kafka.options, and that the brokers' certificates name the "
                "hosts in source.kafka.bootstrap_servers."
            )
        if code in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID"}:
            other = "correct source.kafka.topics" if topic in self.kafka.topics else "name another"
            return ConfigurationError(
                f"Kafka at {self.kafka.bootstrap_servers} has no topic {topic!r}. Create it, or {other}."
            )
        said = describe_error(error)
        if "AUTH" in code or "SASL" in code or code == "_SSL":
            return ConfigurationError(
                f"Kafka at {self.kafka.bootstrap_servers} does not let us read topic {topic!r} ({said}). "
                "Check source.kafka.options and the user's rights (Describe and Read on the topic)."
            )
        return TransientError(
            f"Kafka at {self.kafka.bootstrap_servers} does not answer ({said}). Check that the broker "
            "is up and that source.kafka.bootstrap_servers is right."
        )


def check_topics(
    facts: Mapping[str, TopicFacts], known_ids: Mapping[str, str], positions: Positions, earliest: Positions
) -> None:
    """Stop loudly where Kafka no longer has what the ledger has not read."""
    for topic, topic_id in known_ids.items():
        if topic in facts and facts[topic].topic_id != topic_id:
            raise DataLossError(
                f"Topic {topic} was deleted and created again (its id was {topic_id}, it is "
                f"{facts[topic].topic_id}). Its offsets mean something else now. Give the pipeline a new name "
                "and ledger, or the topic another name, so that nothing is mixed up."
            )
    # A partition that was added to a topic we read begins at 0; what it has lost since was never read.
    added = {place: 0 for place in earliest if place[0] in known_ids}
    for (topic, partition), next_offset in (added | positions).items():
        oldest = earliest.get((topic, partition))
        if oldest is not None and oldest > next_offset:
            raise DataLossError(
                f"Topic {topic} partition {partition}: offsets {next_offset} to {oldest - 1} were deleted by "
                f"Kafka's retention before they were read ({oldest - next_offset} records are lost). Restore "
                "them from elsewhere under a new topic; to go on without them, start the pipeline under a new "
                "name and ledger."
            )


def read_facts(
    topics: KafkaTopics, known_ids: Mapping[str, str], positions: Positions
) -> tuple[dict[str, TopicFacts], Positions]:
    """The topics and their earliest offsets; raises where Kafka no longer has what is to be read."""
    facts = topics.describe()
    earliest = topics.earliest(
        (topic, number) for topic, found in facts.items() for number in range(found.partitions)
    )
    check_topics(facts, known_ids, positions, earliest)
    return facts, earliest


def read_starting(
    topics: KafkaTopics, known_ids: Mapping[str, str], positions: Positions
) -> tuple[dict[str, str], Positions]:
    """The ids of the topics, and where reading goes on; raises as `read_facts` does."""
    facts, earliest = read_facts(topics, known_ids, positions)
    ids = {topic: found.topic_id for topic, found in facts.items()}
    return ids, starting_positions(facts, positions, earliest)


def starting_positions(
    facts: Mapping[str, TopicFacts], positions: Positions, earliest: Positions
) -> Positions:
    """The ledger's offsets; partitions that it does not know start at their earliest."""
    return {
        (topic, partition): positions.get((topic, partition), earliest[topic, partition])
        for topic, found in facts.items()
        for partition in range(found.partitions)
    }


def open_stream(
    spark: SparkSession, kafka: Kafka, starting: Positions, *, headers: bool, max_rows: int, group: str
) -> DataFrame:
    """Records as (source, offset, timestamp, key, value), with headers where asked; no more leaves the JVM."""
    reader = (
        spark.readStream.format("kafka")
        .option("subscribe", ",".join(kafka.topics))
        .option("startingOffsets", _offsets_json(starting))
        .option("maxOffsetsPerTrigger", max_rows)
        .options(**_source_options(kafka, headers=headers, group=group))
    )
    return _narrow(reader.load(), kafka, headers=headers)


def open_ranges(
    spark: SparkSession, kafka: Kafka, ranges: Sequence[OffsetRange], *, headers: bool, group: str
) -> DataFrame:
    """The records of these offsets, with the columns of the stream."""
    partitions: dict[str, list[int]] = {}
    for span in ranges:
        partitions.setdefault(span.topic, []).append(span.partition)
    reader = (
        spark.read.format("kafka")
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", _offsets_json({(s.topic, s.partition): s.start for s in ranges}))
        .option("endingOffsets", _offsets_json({(s.topic, s.partition): s.end for s in ranges}))
        .options(**_source_options(kafka, headers=headers, group=group))
    )
    return _narrow(reader.load(), kafka, headers=headers)


def _source_options(kafka: Kafka, *, headers: bool, group: str) -> dict[str, str]:
    return {
        "includeHeaders": str(headers).lower(),
        "failOnDataLoss": "true",
        **reader_options(kafka),
        "kafka.isolation.level": "read_committed",
        "groupIdPrefix": group,
    }


def _narrow(records: DataFrame, kafka: Kafka, *, headers: bool) -> DataFrame:
    from pyspark.sql import functions as f

    ordinal = f.lit(0)
    for number, topic in enumerate(sorted(kafka.topics)[1:], start=1):
        ordinal = f.when(f.col("topic") == f.lit(topic), f.lit(number)).otherwise(ordinal)
    return records.select(
        (ordinal * f.lit(PARTITIONS) + f.col("partition")).cast("int").alias("source"),
        "offset",
        "timestamp",
        "key",
        "value",
        *(("headers",) if headers else ()),
    )


def read_ranges(checkpoint: Path, micro_batch: int, starting: Positions) -> tuple[OffsetRange, ...]:
    """What a micro-batch covers, from the checkpoint's offset log."""
    ends = _logged_offsets(checkpoint, micro_batch)
    starts = starting if micro_batch == 0 else _logged_offsets(checkpoint, micro_batch - 1)
    return tuple(
        OffsetRange(topic=topic, partition=partition, start=starts.get((topic, partition), 0), end=end)
        for (topic, partition), end in sorted(ends.items())
    )


def _logged_offsets(checkpoint: Path, micro_batch: int) -> Positions:
    path = checkpoint / "offsets" / str(micro_batch)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = json.loads(lines[2])
        return {
            (topic, int(partition)): int(offset)
            for topic, offsets in found.items()
            for partition, offset in offsets.items()
        }
    except (OSError, ValueError, IndexError, AttributeError) as error:
        raise TransientError(
            f"The checkpoint's offset log {path.name} cannot be read ({error}). Checkpoints are scratch: the "
            "stream starts again from the ledger's offsets."
        ) from error


def _offsets_json(positions: Positions) -> str:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in positions.items():
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested)


def group_of(pipeline: str) -> str:
    """What the groups of a pipeline begin with: all that its user needs to read."""
    return f"{GROUP}-{pipeline}"


def client_settings(kafka: Kafka) -> dict[str, Any]:
    """Settings of a client of our own, in librdkafka's spelling.

    How much is fetched at once is for Spark's source, which takes a `fetch.max.bytes` that librdkafka refuses.
    """
    settings = kafka_client.client_settings(kafka.bootstrap_servers, kafka.options)
    return {name: value for name, value in settings.items() if not name.startswith("fetch.")}


def reader_options(kafka: Kafka) -> dict[str, str]:
    """What Spark's source gives to Kafka's Java client: the pipeline's defaults under the user's options."""
    own = {
        "kafka.max.poll.records": str(_POLLED_RECORDS),
        "kafka.fetch.max.wait.ms": str(_FETCH_WAIT_MILLISECONDS),
    }
    return own | java_options(kafka)


def java_options(kafka: Kafka) -> dict[str, str]:
    """The same settings in the spelling of Kafka's Java client, as Spark's source takes them."""
    options = convert_for_java(plain_options(kafka.options))
    return {
        f"kafka.{name}": value
        for name, value in (options | {"bootstrap.servers": kafka.bootstrap_servers}).items()
    }


def _require_offset(answer: ListOffsetsResultInfo) -> ListOffsetsResultInfo:
    """For a leader that has just died the client gives an offset that is none, and calls it no error."""
    if answer.offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    return answer


def _known_epoch(epoch: int | None) -> int | None:
    return epoch if epoch is not None and epoch >= 0 else None


def _code(error: KafkaException) -> str:
    return str(error.args[0].name()) if error.args and hasattr(error.args[0], "name") else ""
