"""The health file: touched while the consumer is alive and no handler is stuck; JSON inside.

A probe needs only its age (`find FILE -mmin -1`); its content says why. While a handler is stuck, the file is written
once with the problem and then no more, so that its age grows.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from oncehouse.errors import TransientError


@dataclass(frozen=True, kw_only=True)
class PartitionHealth:
    topic: str
    partition: int
    done: int | None
    """All records before this offset are handled."""
    lag: int
    running_seconds: float | None
    """How long its handler has been running, if one runs."""
    stuck: bool
    stopped: str
    """Why the partition is stopped; empty if it is not."""


@dataclass(frozen=True, kw_only=True)
class Health:
    healthy: bool
    state: str
    """running, stopping or stopped."""
    group: str
    process: int
    written_at: float
    partitions: tuple[PartitionHealth, ...]


class HealthFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._was_healthy = True

    def write(self, health: Health) -> None:
        if health.healthy or self._was_healthy:
            # A reader must never see half a file.
            retry_topics = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            retry_topics.write_text(json.dumps(asdict(health), indent=2) + "\n", encoding="utf-8")
            retry_topics.replace(self._path)
        self._was_healthy = health.healthy


def read_health(path: Path, *, max_age_seconds: float, now: float) -> Health:
    """The content of the file. Raises TransientError if it is missing, invalid or too old."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        partitions = tuple(PartitionHealth(**partition) for partition in content.pop("partitions"))
        health = Health(**content, partitions=partitions)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TransientError(f"{path} has no health of a consumer: {error}") from error
    if now - health.written_at > max_age_seconds:
        age = now - health.written_at
        raise TransientError(f"{path} is {age:.0f} s old; its consumer is gone, or a handler is stuck")
    return health
