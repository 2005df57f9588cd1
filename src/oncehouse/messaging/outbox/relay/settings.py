"""Settings of a relay: the section `outbox.relay` of the messaging file; in Python under the same names."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from oncehouse.common.backoff import Backoff
from oncehouse.config.field_types import Bytes, Count, Seconds
from oncehouse.config.pipeline import Section
from oncehouse.messaging.outbox.relay.worker import RoundLimits


class RelaySettings(Section):
    keep: Seconds | None = None
    """How long sent rows stay in the table, with their partition and offset; unset, they are deleted at once."""
    lease: Annotated[Seconds, Field(ge=1)] = 20.0
    """After how long other relays take over the buckets of one that died."""
    lanes: Annotated[Count, Field(ge=1, le=16)] = 2
    """Number of worker threads, each sending its own part of the buckets."""
    round_rows: Annotated[Count, Field(ge=1, le=100_000)] = 4_000
    """Rows that a worker claims per round."""
    round_bytes: Bytes = 16 << 20
    """About how many bytes of values a worker claims per round."""
    send: Annotated[Seconds, Field(gt=0)] = 15.0
    """How long a worker waits for acknowledgements before it abandons the round and retries."""
    longest_backoff: Annotated[Seconds, Field(gt=0)] = 30.0
    """The longest wait after consecutive failures."""
    idle_poll: Annotated[Seconds, Field(gt=0)] = 5.0
    """How often an idle relay polls for rows without a notification."""
    drain: Seconds = 20.0
    """How long rounds under way may continue after a stop."""
    clean_rows: Annotated[Count, Field(ge=1)] = 5_000
    """How many kept rows one clean-up deletes at most."""

    @property
    def limits(self) -> RoundLimits:
        return RoundLimits(rows=self.round_rows, size_bytes=self.round_bytes, send_seconds=self.send)

    @property
    def backoff(self) -> Backoff:
        return Backoff(base_seconds=0.5, longest_seconds=self.longest_backoff)
