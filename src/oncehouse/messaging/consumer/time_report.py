"""Where a consumer's time goes: sums of seconds, safe to add to from any thread."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True, kw_only=True)
class TimeReport:
    running_seconds: float
    """Since the start."""
    poll_seconds: float
    """In the Kafka client: waiting for records and reading them."""
    handler_seconds: float
    """In handlers; those that run at the same time are added up."""
    retries_seconds: float
    """Sending failed messages to retry topics and dead letters, and finding the messages that wait for them."""
    wait_seconds: float
    """Batches that were ready and waited for a slot or for the commit of their end."""
    backoff_seconds: float
    """Batches that waited for their next attempt."""
    records: int
    batches: int

    @property
    def aside_seconds(self) -> float:
        """The name of `retries_seconds` in 0.1."""
        return self.retries_seconds

    def __str__(self) -> str:
        lines = [f"{self.records} records in {self.batches} batches, {self.running_seconds:.1f} s"]
        for name in ("poll", "handler", "retries", "wait", "backoff"):
            seconds = getattr(self, f"{name}_seconds")
            share = seconds / self.running_seconds if self.running_seconds else 0.0
            lines.append(f"{name:<8} {seconds:>9.1f} s {share:>7.0%}")
        return "\n".join(lines)


class TimeSums:
    def __init__(self) -> None:
        self._lock = Lock()
        self.poll = self.handler = self.retries = self.backoff = 0.0
        self.records = self.batches = 0

    def add(
        self, *, poll: float = 0, handler: float = 0, retries: float = 0, backoff: float = 0, records: int = 0
    ) -> None:
        with self._lock:
            self.poll += poll
            self.handler += handler
            self.retries += retries
            self.backoff += backoff
            if records:
                self.records += records
                self.batches += 1

    def report(self, *, running_seconds: float, wait_seconds: float) -> TimeReport:
        with self._lock:
            return TimeReport(
                running_seconds=running_seconds,
                poll_seconds=self.poll,
                handler_seconds=self.handler,
                retries_seconds=self.retries,
                wait_seconds=wait_seconds,
                backoff_seconds=self.backoff,
                records=self.records,
                batches=self.batches,
            )
