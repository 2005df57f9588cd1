"""How far Kafka has come: the end offsets of a pipeline's topics.

Part of the read model (`insights.py`). Only ends are asked for; when Kafka is away, everything else is still told.
"""

from __future__ import annotations

from oncehouse.config import Kafka
from oncehouse.errors import OncehouseError
from oncehouse.pipeline.source import Topics

EndOffsets = dict[tuple[str, int], int]


def ask_kafka(kafka: Kafka | None) -> tuple[EndOffsets | None, str | None]:
    """Kafka's end offsets, or why they are not known; neither for a pipeline without Kafka."""
    if kafka is None:
        return None, None
    try:
        return read_ends(Topics(kafka)), None
    except OncehouseError as error:
        return None, str(error)


def read_ends(topics: Topics) -> EndOffsets:
    facts = topics.describe()
    places = [(topic, number) for topic, found in facts.items() for number in range(found.partitions)]
    return topics.latest(places)
