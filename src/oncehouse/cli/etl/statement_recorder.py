"""A client that records statements instead of sending them, to show what a store would run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping


class Recorder(Client):
    def __init__(self, client: Client) -> None:
        super().__init__(client.config)
        self.statements: list[str] = []

    def command(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> object:
        _ = parameters, settings
        self.statements.append(sql)
        return None
