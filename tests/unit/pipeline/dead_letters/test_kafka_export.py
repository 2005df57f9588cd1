"""Under which group the topic of exported dead letters is read."""

from __future__ import annotations

import pytest

from oncehouse.config.pipeline import Kafka
from oncehouse.pipeline.dead_letters import kafka_export
from oncehouse.pipeline.dead_letters.kafka_export import export_dead_letters


class AskedError(Exception):
    """A client was opened under this group."""


def test_what_a_topic_has_is_read_under_a_group_that_the_pipelines_user_may_read(monkeypatch):
    def open_consumer(settings: dict[str, object]):
        raise AskedError(settings["group.id"])

    monkeypatch.setattr(kafka_export, "Consumer", open_consumer)
    kafka = Kafka(bootstrap_servers="127.0.0.1:9", topics=["events"])
    with pytest.raises(AskedError, match=r"^oncehouse-shop$"):
        export_dead_letters(kafka, "shop", "letters", [], partitions=[0])
