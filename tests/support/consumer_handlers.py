"""Handlers that a worker process imports by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from oncehouse.errors import TransientError
from oncehouse.messaging.clickhouse_handler import ClickHouseHandler
from oncehouse.messaging.consumer import Batch


def die_once(batch: Batch) -> None:
    """Dies by the signal or exit that the first value names, unless the batch was tried before."""
    folder, how = (value.decode() for value in batch.values[:2] if value is not None)
    with (Path(folder) / "attempts").open("a") as file:
        file.write(f"{batch.attempt} {batch.token} {[message.offset for message in batch]}\n")
    if batch.attempt == 1:
        match how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                sys.exit(3)
            case "transient":
                raise TransientError("from the process")
            case "local":

                class LocalError(Exception):
                    """Cannot be pickled."""

                raise LocalError("from the process")


def sleep_for_long(batch: Batch) -> None:
    (folder,) = (value.decode() for value in batch.values if value is not None)
    (Path(folder) / "pid").write_text(str(os.getpid()))
    time.sleep(600)


def terminate_itself(batch: Batch) -> None:
    """As a supervisor does that sends SIGTERM to every process of a service."""
    (folder,) = (value.decode() for value in batch.values if value is not None)
    os.kill(os.getpid(), signal.SIGTERM)
    (Path(folder) / "done").touch()


@dataclass(frozen=True, kw_only=True)
class InsertAndDie:
    """Each attempt has a process of its own: the process dies when its INSERT gets no answer.

    A repeat waits until the file `go` is there.
    """

    url: str
    folder: str

    def __call__(self, batch: Batch) -> None:
        send = ClickHouseHandler(
            url=self.url, table="events", rows=_as_own_rows, insert_timeout="10s", retry_horizon="10s"
        )
        while batch.attempt > 1 and not (Path(self.folder) / "go").exists():
            time.sleep(0.05)
        try:
            send(batch)
        except TransientError:
            os.kill(os.getpid(), signal.SIGKILL)


def _as_own_rows(batch: Batch) -> list[dict[str, object]]:
    return [{"id": int(value or 0), "name": "own"} for value in batch.values]
