"""Does Kafka keep records for as long as the pipeline may be away? Topic settings in, findings out. Pure.

What Kafka deletes or compacts away before it was read is lost for good, so a topic must keep everything for
`source.kafka.longest_outage`, by time, by size and by its clean-up policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.common.formatting import format_elapsed
from oncehouse.config.field_types import format_duration, format_size

_KEY = "source.kafka.longest_outage"


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """How long a topic keeps its records, as the broker has it."""

    retention_seconds: float | None
    """None: for ever."""
    retention_bytes: int | None
    """Of one partition; None: without a limit."""
    policies: frozenset[str]
    """`delete`, `compact` or both."""
    compaction_lag_seconds: float
    """A record is not compacted away before it is this old."""
    unclean_election: bool
    """Whether a broker may lead that lacks confirmed records."""
    least_in_sync: int
    """How many replicas confirm a record to a producer that waits for all of them."""


def read_settings(config: Mapping[str, str | None]) -> TopicSettings:
    """The settings of a topic out of Kafka's own words; what the broker does not say is Kafka's default."""
    milliseconds = int(config.get("retention.ms") or 7 * 86_400_000)
    size = int(config.get("retention.bytes") or -1)
    policies = (config.get("cleanup.policy") or "delete").split(",")
    return TopicSettings(
        retention_seconds=None if milliseconds < 0 else milliseconds / 1000,
        retention_bytes=None if size < 0 else size,
        policies=frozenset(policy.strip() for policy in policies),
        compaction_lag_seconds=int(config.get("min.compaction.lag.ms") or 0) / 1000,
        unclean_election=config.get("unclean.leader.election.enable") == "true",
        least_in_sync=int(config.get("min.insync.replicas") or 1),
    )


def check_topic_retention(
    topic: str,
    settings: TopicSettings | None,
    *,
    longest_outage_seconds: float,
    bytes_per_second: float | None = None,
) -> Iterator[Finding]:
    """`bytes_per_second` is what the busiest partition grows by; None where it was not measured."""
    if settings is None:
        yield Finding(
            level=Level.WARNING,
            where=f"topic {topic}",
            what="its settings may not be read, so it is not known whether it outlives an outage",
            advice="give the user DescribeConfigs on the topic, then check again",
        )
        return
    if "compact" in settings.policies:
        yield _check_compaction(topic, settings, longest_outage_seconds)
    if "delete" in settings.policies:
        yield _check_time(topic, settings, longest_outage_seconds)
        if settings.retention_bytes is not None:
            yield _check_size(topic, settings.retention_bytes, longest_outage_seconds, bytes_per_second)


def _check_time(topic: str, settings: TopicSettings, outage: float) -> Finding:
    where, needed = f"topic {topic}: retention.ms", format_duration(outage)
    if settings.retention_seconds is None:
        return Finding(level=Level.OK, where=where, what=f"kept for ever, {_KEY} is {needed}")
    kept = format_duration(settings.retention_seconds)
    if settings.retention_seconds >= outage:
        return Finding(level=Level.OK, where=where, what=f"records are kept for {kept}, {_KEY} is {needed}")
    return Finding(
        level=Level.ERROR,
        where=where,
        what=f"Kafka deletes records after {kept}, but the pipeline may be away for {needed} ({_KEY}): what it "
        "has not read by then is lost",
        advice=f"run: {alter_topic(topic, f'retention.ms={int(outage * 1000)}')}\nor lower {_KEY}",
    )


def _check_size(topic: str, kept_bytes: int, outage: float, bytes_per_second: float | None) -> Finding:
    where, size = f"topic {topic}: retention.bytes", format_size(kept_bytes)
    needed = format_duration(outage)
    if not bytes_per_second:
        return Finding(
            level=Level.WARNING,
            where=where,
            what=f"each partition keeps {size}, however young its records are; too few records came lately to "
            f"say whether that lasts for {needed} ({_KEY})",
            advice=f"run: {alter_topic(topic, 'retention.bytes=-1')}\nor see that {size} hold {needed} of records",
        )
    lasts = kept_bytes / bytes_per_second
    figures = (
        f"each partition keeps {size}, the busiest grows by about {bytes_per_second:,.0f} bytes a second: "
        f"that lasts for about {format_elapsed(lasts)}, {_KEY} is {needed}"
    )
    if lasts >= outage:
        return Finding(level=Level.OK, where=where, what=figures)
    return Finding(
        level=Level.ERROR,
        where=where,
        what=figures,
        advice=f"run: {alter_topic(topic, f'retention.bytes={int(bytes_per_second * outage * 2)}')}\n"
        f"or lower {_KEY}",
    )


def _check_compaction(topic: str, settings: TopicSettings, outage: float) -> Finding:
    where, needed = f"topic {topic}: cleanup.policy", format_duration(outage)
    lag = format_duration(settings.compaction_lag_seconds)
    if settings.compaction_lag_seconds >= outage:
        return Finding(
            level=Level.OK,
            where=where,
            what=f"compaction leaves records alone for {lag} (min.compaction.lag.ms), {_KEY} is {needed}",
        )
    return Finding(
        level=Level.ERROR,
        where=where,
        what=f"the topic is compacted: of records with one key all but the last may go after {lag} "
        f"(min.compaction.lag.ms), read or not; the pipeline may be away for {needed} ({_KEY})",
        advice=f"run: {alter_topic(topic, f'min.compaction.lag.ms={int(outage * 1000)}')}\nor lower {_KEY}",
    )


def alter_topic(topic: str, change: str) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server … --alter --entity-type topics --entity-name {topic} "
        f"--add-config {change}"
    )
