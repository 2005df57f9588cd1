"""ClickHouse's engine out of the chdb-core wheel as a server process: `python -P … DATA_FOLDER`.

The engine listens for as long as its first query runs, so that query reads a pipe that has no writer.
SIGTERM closes the pipe and the engine ends in order. This is a private entry point of the wheel: its version
is pinned exactly, and it must be the first query of the process.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from pathlib import Path


def serve(data: Path) -> None:
    pipe = data.parent / "until-closed.pipe"
    if not pipe.exists():
        os.mkfifo(pipe, 0o600)
    # Blocked before the engine starts its threads, so that only the waiting thread below receives it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_on_signal, args=(pipe,), daemon=True).start()
    engine = importlib.import_module("chdb._chdb")

    quoted = str(pipe).replace("\\", "\\\\").replace("'", "\\'")
    wait_for_end = f"SELECT * FROM file('{quoted}', LineAsString) FORMAT Null"  # noqa: S608 - our own path, quoted
    engine.query(
        f"SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; {wait_for_end}",
        "TabSeparated",  # with the wheel's own default, CSV, clients refuse the server
        path=str(data),
    )


def _end_on_signal(pipe: Path) -> None:
    signal.sigwait({signal.SIGTERM})
    os.close(os.open(pipe, os.O_WRONLY))


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
