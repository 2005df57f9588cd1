"""How a relay works: the section `outbox.relay` of the messaging file, or given in Python under the same names."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from oncehouse.common.backoff import Backoff
from oncehouse.config.field_types import Bytes, Count, Seconds
from oncehouse.config.pipeline import Section
from oncehouse.messaging.outbox.relay.worker import Limits


class RelaySettings(Section):
    keep: Seconds | None = None
    """How long sent rows stay in the table, marked with their place in Kafka; without it they are deleted at once."""
    lease: Annotated[Seconds, Field(ge=1)] = 20.0
    """How long another relay waits before it takes over from one that has died."""
    lanes: Annotated[Count, Field(ge=1, le=16)] = 2
    """How many rounds are under way at a time, each over its own part of the buckets."""
    round_rows: Annotated[Count, Field(ge=1, le=100_000)] = 4_000
    """Rows that a lane claims at a time."""
    round_bytes: Bytes = 16 << 20
    """About how many bytes of values a lane claims at a time."""
    send: Annotated[Seconds, Field(gt=0)] = 15.0
    """How long acknowledgements are waited for before a round is given up and tried again."""
    longest_backoff: Annotated[Seconds, Field(gt=0)] = 30.0
    """The longest wait after failures in a row."""
    idle_poll: Annotated[Seconds, Field(gt=0)] = 5.0
    """How often an idle relay looks for rows that no notification told of."""
    drain: Seconds = 20.0
    """How long rounds under way may go on after the relay was asked to stop."""
    clean_rows: Annotated[Count, Field(ge=1)] = 5_000
    """How many kept rows one clean-up deletes at most."""

    @property
    def limits(self) -> Limits:
        return Limits(rows=self.round_rows, size_bytes=self.round_bytes, send_seconds=self.send)

    @property
    def backoff(self) -> Backoff:
        return Backoff(base_seconds=0.5, longest_seconds=self.longest_backoff)
