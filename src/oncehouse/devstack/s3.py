"""An S3 API on this machine: moto's server, with one bucket. What it holds lives in its memory and ends with it."""

from __future__ import annotations

import http.client
import signal
import sys
from dataclasses import dataclass
from typing import ClassVar

from oncehouse.devstack.server_base import LOCALHOST, Launch, ServerPlace, answers

BUCKET = "ledger"
_KEY = "dev"


@dataclass(frozen=True, kw_only=True)
class S3:
    place: ServerPlace

    name: ClassVar[str] = "s3"
    port_names: ClassVar[tuple[str, ...]] = ("api",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 60

    @property
    def endpoint(self) -> str:
        return f"{LOCALHOST}:{self.place.ports['api']}"

    @property
    def address(self) -> str:
        """What `ledger.files` is set to, with a folder of one's own behind the bucket."""
        return self.files("oncehouse")

    def files(self, prefix: str) -> str:
        # Keys in the address travel to executors too, whatever their environment; this server takes any.
        options = f"endpoint_override={self.endpoint}&scheme=http&region=us-east-1"
        return f"s3://{_KEY}:{_KEY}@{BUCKET}/{prefix}?{options}"

    def prepare(self) -> None:
        """Nothing to fetch and nothing to lay out."""

    def launch(self) -> Launch:
        return Launch(
            command=(
                *(sys.executable, "-m", "oncehouse.devstack.s3_server"),
                *(LOCALHOST, str(self.place.ports["api"]), BUCKET),
            )
        )

    def is_ready(self) -> bool:
        """The bucket is there: the server makes it before it says so."""
        if not answers(self.place.ports["api"]):
            return False
        connection = http.client.HTTPConnection(LOCALHOST, self.place.ports["api"], timeout=2)
        try:
            connection.request("HEAD", f"/{BUCKET}")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
