"""The question for leader epochs, without a broker that answers it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException

from oncehouse.leader_epochs import ask_epoch_ends


def ask(**options: str):
    settings = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0} | options
    return ask_epoch_ends(settings, {("events", 0): 3}, timeout_seconds=0.1)


def test_a_broker_that_does_not_answer_is_not_waited_for():
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        ask()


def test_bounds_for_fetching_that_the_client_would_refuse_do_not_matter():
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        ask(
            **{
                "fetch.max.bytes": "4096",
                "max.partition.fetch.bytes": "4096",
                "receive.message.max.bytes": "9000",
            }
        )


def test_nothing_is_asked_for_no_partitions():
    assert ask_epoch_ends({}, {}, timeout_seconds=0.0) == {}
