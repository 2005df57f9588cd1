"""What is looked up about a topic's table and transform before its steps, and remembered until one of them changes.

Steps that follow each other ask once a second. Reads, and writes nothing; a topic that cannot be served is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from oncehouse.clickhouse.client import Client
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.quality.expectations import check_columns
from oncehouse.etl.steps.destination_check import DestinationTable, check_destination
from oncehouse.etl.steps.replication import require_reach
from oncehouse.etl.steps.transforms import Transform, Version, find_transform, read_columns, read_version

_TRUST_SECONDS = 1.0
"""For so long what was looked up about a topic is taken as it was."""


@dataclass(frozen=True, kw_only=True)
class PreparedTransform:
    """What was looked up about a topic's table and transform."""

    version: Version | None
    transform: Transform
    columns: Mapping[str, str]
    """Column and type of what the transform yields."""
    destination: DestinationTable
    read_at: float = field(compare=False)
    """When, by this process's own clock."""


class TransformCache:
    def __init__(self, client: Client, folder: Path, view_table: str | None) -> None:
        """`view_table` is the table of offsets on the server, if they are there."""
        self._client = client
        self._folder = folder
        self._view_table = view_table
        self._prepared: dict[str, PreparedTransform] = {}

    def prepare(self, topic: Topic) -> PreparedTransform:
        """Looked up again only when the table or the transform has changed: one question a second instead of five."""
        known, now = self._prepared.get(topic.topic), time.monotonic()
        if known is not None and now - known.read_at < _TRUST_SECONDS:
            return known
        version = read_version(self._client, topic, self._folder)
        if version is not None and known is not None and known.version == version:
            self._prepared[topic.topic] = replace(known, read_at=now)
            return known
        self._prepared[topic.topic] = self._load(topic, version, now)
        return self._prepared[topic.topic]

    def _load(self, topic: Topic, version: Version | None, now: float) -> PreparedTransform:
        destination = check_destination(self._client, topic)
        require_reach(self._client, topic)
        transform = find_transform(self._client, topic, self._folder, self._view_table)
        if transform.offsets_table is None and not transform.has_range and topic.template == Template.STEP:
            raise ConfigurationError(
                f"Topic {topic.topic}: its transform {transform.name} takes no range. Offsets in a catalog cannot be "
                "read by a view: let it ask for {last_time:DateTime64(3)}, {last_id:UInt64}, "
                "{next_time:DateTime64(3)} and {next_id:UInt64}."
            )
        columns = read_columns(self._client, transform)
        check_columns(topic.expect, tuple(columns), where=f"Topic {topic.topic}")
        return PreparedTransform(
            version=version,
            transform=transform,
            columns=columns,
            destination=destination,
            read_at=now,
        )
