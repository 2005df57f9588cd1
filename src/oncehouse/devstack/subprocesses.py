"""Commands of oncehouse in processes of their own, as users run them, of which nothing outlives its block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ONCEHOUSE = (sys.executable, "-c", "from oncehouse.cli.app import main; main()")
"""How the command line is started without an installed script."""

_LAST_LINES = 30
_DAEMONS = {b"pyspark.daemon", b"oncehouse.pipeline.spark.worker_daemon"}


@contextmanager
def start_command(
    words: Sequence[str], *, log: Path, scratch: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, ended with all its children at the end of the block.

    `scratch` is for what a killed process leaves behind; what it says is added to `log`.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(scratch), **(environment or {})},
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def spark_settings(jars: Sequence[Path], scratch: Path) -> dict[str, str]:
    """Spark with the stack's Kafka connector, whose scratch goes with a folder."""
    return {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.local.dir": str(scratch),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch}",
    }


def last_words(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:]) if log.exists() else ""


def signal_tree(root: int, number: signal.Signals) -> None:
    """To a process and all that it has started: Spark's workers are in a group of their own."""
    reached: set[int] = set()
    # Looked at again, for one may have been forked meanwhile.
    while new := [pid for pid in (root, *descendants(root)) if pid not in reached]:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        reached.update(new)


def descendants(root: int) -> list[int]:
    found, waiting = [], [root]
    children = _children()
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def python_workers(driver: int) -> list[int]:
    """The Python workers of a driver: those that Spark's daemon, a grandchild of the driver, has forked."""
    children = _children()
    return [
        child
        for daemon in descendants(driver)
        if _is_daemon(daemon)
        for child in children.get(daemon, [])
        if _is_daemon(child)
    ]


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue  # it ended while it was looked at
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return children


def _is_daemon(pid: int) -> bool:
    try:
        return not _DAEMONS.isdisjoint(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    except OSError:
        return False
