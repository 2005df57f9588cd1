"""Whether Kafka keeps records through the longest outage: judged by time, by size and by compaction."""

import pytest

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.pipeline.ingest.kafka_retention import check_topic_retention, read_settings

DAY = 86_400.0


def judge(config, *, outage=3 * DAY, rate=None):
    settings = read_settings(config)
    return list(
        check_topic_retention("events", settings, longest_outage_seconds=outage, bytes_per_second=rate)
    )


def only(findings):
    assert len(findings) == 1, findings
    return findings[0]


@pytest.mark.parametrize(
    ("milliseconds", "level"),
    [
        ("-1", Level.OK),
        (str(3 * 86_400_000), Level.OK),
        (str(3 * 86_400_000 - 1), Level.ERROR),
        ("0", Level.ERROR),
        (None, Level.OK),
    ],
)
def test_records_must_be_kept_for_the_longest_outage(milliseconds, level):
    finding = only(judge({"retention.ms": milliseconds}))
    assert (finding.level, finding.where) == (level, "topic events: retention.ms")


def test_the_refusal_names_both_settings_and_the_change():
    finding = only(judge({"retention.ms": "3600000"}))
    assert "after 1h" in finding.what
    assert "3d (source.kafka.longest_outage)" in finding.what
    assert "--add-config retention.ms=259200000" in finding.advice


def test_a_limit_of_bytes_is_judged_by_how_fast_the_topic_grows():
    config = {"retention.bytes": str(1 << 30)}
    (_, slow), (_, fast) = judge(config, rate=100.0), judge(config, rate=100_000.0)
    assert (slow.level, fast.level) == (Level.OK, Level.ERROR)
    assert "1GB" in fast.what
    assert "100,000 bytes a second" in fast.what
    assert f"retention.bytes={int(100_000 * 3 * DAY * 2)}" in fast.advice


def test_a_limit_of_bytes_that_nobody_can_judge_is_a_warning():
    _, finding = judge({"retention.bytes": "1000"})
    assert (finding.level, finding.where) == (Level.WARNING, "topic events: retention.bytes")


@pytest.mark.parametrize(("lag", "level"), [("0", Level.ERROR), (str(3 * 86_400_000), Level.OK)])
def test_a_compacted_topic_must_leave_records_alone_for_the_outage(lag, level):
    finding = only(judge({"cleanup.policy": "compact", "min.compaction.lag.ms": lag, "retention.ms": "1"}))
    assert (finding.level, finding.where) == (level, "topic events: cleanup.policy")


def test_a_topic_that_compacts_and_deletes_is_judged_by_both():
    findings = judge({"cleanup.policy": "compact, delete", "retention.ms": "1"})
    assert [finding.level for finding in findings] == [Level.ERROR, Level.ERROR]


def test_settings_that_may_not_be_read_are_a_warning():
    finding = only(list(check_topic_retention("events", None, longest_outage_seconds=DAY)))
    assert finding.level is Level.WARNING
    assert "DescribeConfigs" in finding.advice
