"""The section `inbox` of the messaging file: settings of workers and of the HTTP endpoint."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from oncehouse.common.backoff import Backoff
from oncehouse.common.http_auth import is_loopback
from oncehouse.config.base import Section
from oncehouse.config.field_types import Bytes, Count, Seconds, refuse_crossed
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.inbox.ids import check_inbox_name
from oncehouse.messaging.inbox.types import WorkerSettings

_MEGABYTE = 1 << 20


def _check_name(value: str) -> str:
    try:
        return check_inbox_name(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


InboxName = Annotated[str, AfterValidator(_check_name)]


class InletSettings(Section):
    host: str = "127.0.0.1"
    """The address to listen on; any address but a loopback one needs a token."""
    port: Annotated[Count, Field(ge=0, le=65535)] = 8087
    """0 chooses a free port."""
    token: SecretStr | None = None
    """The token that callers send as `Authorization: Bearer …`."""
    max_body: Bytes = _MEGABYTE
    """The largest message that is accepted."""

    @model_validator(mode="after")
    def _require_token(self) -> Self:
        if self.token is None and not is_loopback(self.host):
            raise ValueError(
                f"without a token the HTTP endpoint listens on a loopback address only, not on {self.host!a}"
            )
        return self


class RetrySettings(Section):
    attempts: Annotated[Count, Field(ge=1, le=1_000)] = 10
    """How often a message is tried before it is parked."""
    first_wait: Seconds = 1.0
    longest_wait: Seconds = 600.0
    """Waits double from the first to the longest; each is a random part of that."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        refuse_crossed(("first_wait", self.first_wait), ("longest_wait", self.longest_wait))
        return self


class InboxSettings(Section):
    names: tuple[InboxName, ...] = ()
    """The stored inboxes of this service; the HTTP endpoint accepts messages for these only."""
    keep: Annotated[Seconds, Field(gt=0)] = 7 * 86400.0
    """How long finished messages are kept, so that repeats are skipped."""
    concurrency: Annotated[Count, Field(ge=1, le=16)] = 8
    """How many handlers of a worker run at the same time."""
    retries: RetrySettings = Field(default_factory=RetrySettings)
    parked_holds_key: bool = False
    """Whether later messages of a key wait for a parked one."""
    lease: Annotated[Seconds, Field(ge=1)] = 15.0
    """After how long without a renewal a worker counts as dead."""
    drain: Seconds = 30.0
    """How long a stop waits for running handlers and requests."""
    inlet: InletSettings = Field(default_factory=InletSettings)

    def for_worker(self) -> WorkerSettings:
        retries = self.retries
        return WorkerSettings(
            concurrency=self.concurrency,
            max_attempts=retries.attempts,
            backoff=Backoff(base_seconds=retries.first_wait, longest_seconds=retries.longest_wait),
            parked_holds_key=self.parked_holds_key,
            keep_seconds=self.keep,
            lease_seconds=self.lease,
            drain_seconds=self.drain,
        )

    def require_name(self, name: str | None) -> str:
        """The inbox of a command: the one it names, or the only one of the file."""
        if name is not None:
            if self.names and name not in self.names:
                raise ConfigurationError(
                    f"inbox.names has no {name!a}; it has {', '.join(self.names)}. Add it there, or name one of these."
                )
            return check_inbox_name(name)
        if len(self.names) == 1:
            return self.names[0]
        advice = f"add --inbox {' | '.join(self.names)}" if self.names else "name it under inbox.names"
        raise ConfigurationError(f"The command does not say which inbox; {advice}")
