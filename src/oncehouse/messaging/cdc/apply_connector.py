"""Creates or changes a connector in Kafka Connect and waits until it runs. An equal connector is left alone."""

from __future__ import annotations

import time
from typing import Literal, Protocol

from oncehouse.errors import PermanentError, TransientError
from oncehouse.messaging.cdc.connect_client import ConnectorState
from oncehouse.messaging.cdc.connector_config import Config

_POLL_SECONDS = 0.2

ApplyResult = Literal["created", "changed", "unchanged"]


class Connectors(Protocol):
    """The operations of Kafka Connect that are needed here."""

    def read_config(self, name: str) -> dict[str, str] | None: ...

    def read_state(self, name: str) -> ConnectorState | None: ...

    def put_config(self, name: str, config: Config) -> None: ...


def apply_connector(connectors: Connectors, name: str, config: Config) -> ApplyResult:
    """Put the configuration if it differs: an equal one would restart the task."""
    wanted = {**config, "name": name}
    known = connectors.read_config(name)
    if known == wanted:
        return "unchanged"
    connectors.put_config(name, wanted)
    return "created" if known is None else "changed"


def wait_until_running(connectors: Connectors, name: str, *, timeout_seconds: float) -> ConnectorState:
    """Raises PermanentError with the connector's error if it fails, TransientError if it takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        state = connectors.read_state(name)
        if state is not None and state.failed:
            raise PermanentError(
                f"connector {name} failed: {state.problem}. Correct its file and `cdc apply` it again; if nothing "
                f"in it is wrong, POST /connectors/{name}/restart?includeTasks=true&onlyFailed=true restarts it"
            )
        if state is not None and state.running:
            return state
        if time.monotonic() > deadline:
            shown = "is not started" if state is None else f"is {state.state} with {len(state.tasks)} tasks"
            raise TransientError(
                f"connector {name} {shown} after {timeout_seconds:.0f} s; see `oncehouse cdc status`"
            )
        time.sleep(_POLL_SECONDS)
