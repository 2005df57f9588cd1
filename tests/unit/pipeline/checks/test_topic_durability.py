"""Whether Kafka may lose what it has confirmed: judged by elections, replicas and who confirms."""

from __future__ import annotations

import pytest

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.pipeline.checks.topic_durability import check_topic_durability
from oncehouse.pipeline.ingest.kafka_retention import read_settings

SAFE = {"unclean.leader.election.enable": "false", "min.insync.replicas": "2"}


def judge(replicas=3, **config):
    changed = {name.replace("_", "."): value for name, value in config.items()}
    return list(check_topic_durability("events", read_settings(SAFE | changed), replicas))


def test_three_replicas_of_which_two_confirm_are_right():
    (finding,) = judge()
    assert (finding.level, finding.where) == (Level.OK, "topic events: durability")
    assert "3 replicas, of which 2 confirm" in finding.what


@pytest.mark.parametrize(
    ("replicas", "config", "where"),
    [
        (3, {"unclean_leader_election_enable": "true"}, "unclean.leader.election.enable"),
        (1, {}, "replication factor"),
        (1, {"min_insync_replicas": "1"}, "replication factor"),
        (3, {"min_insync_replicas": "1"}, "min.insync.replicas"),
    ],
)
def test_what_may_lose_confirmed_records_is_a_warning(replicas, config, where):
    (finding,) = judge(replicas, **config)
    assert (finding.level, finding.where) == (Level.WARNING, f"topic events: {where}")
    assert finding.advice


def test_the_advice_is_the_statement_that_forbids_unclean_elections():
    (finding,) = judge(unclean_leader_election_enable="true")
    assert "--entity-name events --add-config unclean.leader.election.enable=false" in finding.advice
    assert "exit code 5" in finding.what


def test_what_a_broker_does_not_say_is_taken_for_kafkas_default():
    (finding,) = check_topic_durability("events", read_settings({}), 3)
    assert finding.where == "topic events: min.insync.replicas"
