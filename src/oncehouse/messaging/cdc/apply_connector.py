"""Brings a connector to Kafka Connect and waits until it runs. What it has already is left alone."""

from __future__ import annotations

import time
from typing import Literal, Protocol

from oncehouse.errors import PermanentError, TransientError
from oncehouse.messaging.cdc.connect_client import ConnectorState
from oncehouse.messaging.cdc.connector_config import Config

_LOOK_EVERY_SECONDS = 0.2

Outcome = Literal["created", "changed", "unchanged"]


class Connectors(Protocol):
    """What of Kafka Connect is needed here."""

    def read_config(self, name: str) -> dict[str, str] | None: ...

    def read_state(self, name: str) -> ConnectorState | None: ...

    def put_config(self, name: str, config: Config) -> None: ...


def apply_connector(connectors: Connectors, name: str, config: Config) -> Outcome:
    """Put the configuration where it differs: putting an equal one would restart the task."""
    wanted = {**config, "name": name}
    known = connectors.read_config(name)
    if known == wanted:
        return "unchanged"
    connectors.put_config(name, wanted)
    return "created" if known is None else "changed"


def await_running(connectors: Connectors, name: str, *, patience_seconds: float) -> ConnectorState:
    """Raises PermanentError with the connector's own words when it fails, TransientError when it takes too long."""
    deadline = time.monotonic() + patience_seconds
    while True:
        state = connectors.read_state(name)
        if state is not None and state.failed:
            raise PermanentError(
                f"connector {name} failed: {state.problem}. Correct its file and `cdc apply` it again; if nothing "
                f"in it was wrong, POST /connectors/{name}/restart?includeTasks=true&onlyFailed=true restarts it"
            )
        if state is not None and state.running:
            return state
        if time.monotonic() > deadline:
            shown = "is not started" if state is None else f"is {state.state} with {len(state.tasks)} tasks"
            raise TransientError(
                f"connector {name} {shown} after {patience_seconds:.0f} s; look at it with `oncehouse cdc status`"
            )
        time.sleep(_LOOK_EVERY_SECONDS)
