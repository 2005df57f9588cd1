"""Reading Kafka's end offsets for a person who waits."""

from __future__ import annotations

import socket

from oncehouse.config.pipeline import Kafka
from oncehouse.monitoring.kafka import ask_kafka


def test_a_kafka_that_does_not_answer_is_not_waited_for_until_its_client_gives_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ends, trouble = ask_kafka(Kafka(bootstrap_servers=address, topics=["orders"]), wait_seconds=0.2)
    assert ends is None
    assert trouble == f"Kafka at {address} has not answered within 0.2 s."


def test_a_pipeline_without_kafka_has_neither_offsets_nor_trouble():
    assert ask_kafka(None) == (None, None)
