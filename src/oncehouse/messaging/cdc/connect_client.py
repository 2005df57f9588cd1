"""Kafka Connect's REST interface: list connectors, read their state, and change their configuration.

An unavailable or rebalancing worker raises TransientError; a refused configuration raises ConfigurationError with the
worker's message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import urllib3

from oncehouse.common.redaction import reveal
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.cdc.settings import CdcSettings

_TIMEOUT_SECONDS = 15.0
_BUSY = (409, 429, 500, 502, 503, 504)
_SHOWN_LENGTH = 600
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class TaskState:
    task: int
    state: str
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class ConnectorState:
    name: str
    state: str
    tasks: tuple[TaskState, ...]
    error: str = ""
    slot: str | None = None
    """The replication slot that it reads, for Debezium's PostgreSQL connector."""

    @property
    def running(self) -> bool:
        return self.state == "RUNNING" and bool(self.tasks) and all(t.state == "RUNNING" for t in self.tasks)

    @property
    def failed(self) -> bool:
        return self.state == "FAILED" or any(task.state == "FAILED" for task in self.tasks)

    @property
    def problem(self) -> str:
        """The first error."""
        return self.error or next((task.error for task in self.tasks if task.error), "")


class ConnectClient:
    def __init__(self, settings: CdcSettings) -> None:
        self._address = settings.connect.rstrip("/")
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if settings.user is not None:
            headers |= urllib3.make_headers(basic_auth=f"{settings.user}:{reveal(settings.password)}")
        # Changes may be retried, too: putting a configuration is idempotent.
        retry = urllib3.Retry(
            total=4,
            connect=1,
            backoff_factor=0.5,
            status_forcelist=(409, 503),
            allowed_methods=None,
            raise_on_status=False,
        )
        self._pool = urllib3.PoolManager(
            retries=retry, timeout=urllib3.Timeout(_TIMEOUT_SECONDS), headers=headers
        )

    def list_names(self) -> list[str]:
        found = self._request("GET", "/connectors")
        return sorted(str(name) for name in found) if isinstance(found, list) else []

    def read_config(self, name: str) -> dict[str, str] | None:
        found = self._request("GET", f"/connectors/{quote(name, safe='')}/config")
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else None

    def read_state(self, name: str) -> ConnectorState | None:
        """None for a connector that does not exist (yet)."""
        found = self._request("GET", f"/connectors/{quote(name, safe='')}/status")
        return read_state(name, found) if isinstance(found, dict) else None

    def put_config(self, name: str, config: Mapping[str, str]) -> None:
        body = json.dumps({**config, "name": name}).encode()
        if self._request("PUT", f"/connectors/{quote(name, safe='')}/config", body) is None:
            raise PermanentError(f"{self._address} is not Kafka Connect: it has no /connectors")

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The answer, or None for 404."""
        try:
            answer = self._pool.request(method, self._address + path, body=body)
        except urllib3.exceptions.HTTPError as error:
            reason = str(getattr(error, "reason", None) or error).rpartition("): ")[2]
            raise TransientError(
                f"Kafka Connect at {self._address} does not answer ({reason}). Check cdc.connect and that it runs"
            ) from error
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise self._wrap_error(answer.status, answer.data)
        try:
            return json.loads(answer.data) if answer.data else {}
        except ValueError:
            raise PermanentError(
                f"{self._address} answered with something other than JSON; is it Kafka Connect?"
            ) from None

    def _wrap_error(self, status: int, data: bytes) -> Exception:
        message = _read_message(data)
        if status in {401, 403}:
            return ConfigurationError(
                f"Kafka Connect at {self._address} refused the user ({status}); check cdc.user and cdc.password"
            )
        if "Failed to find any class" in message:
            return ConfigurationError(
                f"Kafka Connect at {self._address} has no Debezium for PostgreSQL; put it under plugin.path: {message}"
            )
        if status in _BUSY:
            return TransientError(f"Kafka Connect at {self._address} is busy ({status}): {message}")
        return ConfigurationError(f"Kafka Connect at {self._address} refused it ({status}): {message}")


def read_state(name: str, found: Mapping[str, Any]) -> ConnectorState:
    connector = found.get("connector") or {}
    return ConnectorState(
        name=name,
        state=str(connector.get("state", "UNKNOWN")),
        error=find_cause(str(connector.get("trace") or "")),
        tasks=tuple(
            TaskState(
                task=int(task.get("id", 0)),
                state=str(task.get("state", "UNKNOWN")),
                error=find_cause(str(task.get("trace") or "")),
            )
            for task in found.get("tasks") or ()
        ),
    )


def find_cause(trace: str) -> str:
    """The innermost cause of a Java stack trace."""
    causes = _CAUSE.findall(trace)
    return (causes[-1] if causes else (trace.strip().splitlines() or [""])[0])[:_SHOWN_LENGTH]


def _read_message(data: bytes) -> str:
    try:
        content = json.loads(data)
        text = str(content.get("message", content)) if isinstance(content, dict) else str(content)
    except ValueError:
        text = data.decode("utf-8", "replace")
    return " ".join(text.split())[:_SHOWN_LENGTH]
