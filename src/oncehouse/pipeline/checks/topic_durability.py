"""Can Kafka lose records that it has confirmed? Topic settings in, findings out. Pure.

A topic keeps what it confirmed through the death of a broker if another one has it (replication factor), is known to
have it (min.insync.replicas, for producers with acks=all) and if no other broker may lead (unclean leader election).
"""

from __future__ import annotations

from collections.abc import Iterator

from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.pipeline.ingest.kafka_retention import TopicSettings, alter_topic


def check_topic_durability(topic: str, settings: TopicSettings, replicas: int) -> Iterator[Finding]:
    """`replicas`: of the partition that has the fewest."""
    findings = [
        finding
        for finding in (
            _check_election(topic, settings),
            _check_replicas(topic, replicas),
            _check_in_sync(topic, settings, replicas),
        )
        if finding is not None
    ]
    yield from findings
    if not findings:
        yield Finding(
            level=Level.OK,
            where=f"topic {topic}: durability",
            what=f"{replicas} replicas, of which {settings.least_in_sync} confirm (min.insync.replicas), and no "
            "unclean leader election",
        )


def _check_election(topic: str, settings: TopicSettings) -> Finding | None:
    if not settings.unclean_election:
        return None
    return Finding(
        level=Level.WARNING,
        where=f"topic {topic}: unclean.leader.election.enable",
        what="Kafka may elect a leader that lacks confirmed records: they are lost, and the pipeline stops (exit code "
        "5) if it has read them, because other records get their offsets",
        advice=f"run: {alter_topic(topic, 'unclean.leader.election.enable=false')}",
    )


def _check_replicas(topic: str, replicas: int) -> Finding | None:
    if replicas > 1:
        return None
    return Finding(
        level=Level.WARNING,
        where=f"topic {topic}: replication factor",
        what="a partition is on one broker only: with its disk, records are lost that were confirmed",
        advice="reassign the partitions to three brokers (kafka-reassign-partitions.sh), with min.insync.replicas=2",
    )


def _check_in_sync(topic: str, settings: TopicSettings, replicas: int) -> Finding | None:
    if replicas == 1 or settings.least_in_sync > 1:
        return None
    return Finding(
        level=Level.WARNING,
        where=f"topic {topic}: min.insync.replicas",
        what=f"of {replicas} replicas one alone may confirm records, also to producers with acks=all: with its disk, "
        "they are lost",
        advice=f"run: {alter_topic(topic, 'min.insync.replicas=2')}\nwith three replicas or more, and acks=all in the "
        "producers",
    )
