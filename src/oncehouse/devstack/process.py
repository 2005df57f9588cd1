"""Server processes that outlive the command which started them, known by pid and start time.

The server writes its own pid file before it becomes the server, so that no crash of the starter can leave
an unknown process behind. A pid counts only together with its start time and the machine's boot: a pid
that was given to another program since is never signalled. Linux only, because /proc is the witness.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# The outer shell ends at once, so the server is adopted by init: it needs no reaping by the starter and a
# Ctrl-C there does not reach it. The inner shell notes who it is and then becomes the server. Until it has
# noted that, it holds the lock of the folder (descriptor 3) as its starter does: if the starter is killed
# meanwhile, the next one waits and then finds the pid file.
_DETACH = 'exec 3<&0 </dev/null; "$@" &'
_NOTE_AND_EXEC = (
    "umask 077; boot=; read -r boot 2>/dev/null </proc/sys/kernel/random/boot_id || :; "
    'read -r line </proc/$$/stat && printf "%s\\n%s\\n" "$line" "$boot" >"$0.new" '
    '&& mv "$0.new" "$0" && exec "$@" 3<&-'
)


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    pid: int
    started_ticks: int
    boot_id: str


@dataclass(frozen=True, kw_only=True)
class _Stat:
    state: str
    parent: int
    threads: int
    started_ticks: int


def launch_detached(
    command: Sequence[str],
    *,
    pid_file: Path,
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
    lock: IO[str],
) -> None:
    """Start a server in a session of its own; its pid file appears before the server's first instruction."""
    pid_file.unlink(missing_ok=True)
    with log.open("ab") as output:
        subprocess.run(
            ["sh", "-c", _DETACH, "sh", "sh", "-c", _NOTE_AND_EXEC, str(pid_file), *command],
            check=True,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=lock,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def read_process(pid_file: Path) -> ServerProcess | None:
    """Who the pid file names, or None when there is no file or it is torn."""
    try:
        line, _, rest = pid_file.read_text().partition("\n")
        pid = int(line.split(" ", 1)[0])
        return ServerProcess(pid=pid, started_ticks=_parse_stat(line).started_ticks, boot_id=rest.strip())
    except (FileNotFoundError, ValueError, IndexError):
        return None


def is_alive(process: ServerProcess | None) -> bool:
    """True only for the very process that was started: same boot, same start time, not a zombie.

    A killed process shows as a zombie while its last threads still hold its ports: then it is not gone yet.
    """
    if process is None or process.boot_id != _read_boot_id():
        return False
    stat = _read_stat(process.pid)
    if stat is None or stat.started_ticks != process.started_ticks:
        return False
    return stat.state not in "ZX" or stat.threads > 1


def end(process: ServerProcess | None, *, how: signal.Signals, patience_seconds: float) -> None:
    """Ask by signal, insist with SIGKILL once patience is over, and return when the process is gone.

    Its children are awaited too: PostgreSQL's backends hold shared memory for a moment after their parent.
    """
    if process is None or not is_alive(process):
        return
    family = [process, *_children(process)]
    _send(process, how)
    if _wait_until_gone(family, patience_seconds):
        return
    for member in family:
        _send(member, signal.SIGKILL)
    _wait_until_gone(family, patience_seconds)


def _send(process: ServerProcess, how: signal.Signals) -> None:
    if is_alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, how)


def _wait_until_gone(family: Sequence[ServerProcess], patience_seconds: float) -> bool:
    deadline = time.monotonic() + patience_seconds
    while any(is_alive(member) for member in family):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _children(process: ServerProcess) -> list[ServerProcess]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        stat = _read_stat(int(entry.name))
        if stat is not None and stat.parent == process.pid:
            child = ServerProcess(
                pid=int(entry.name), started_ticks=stat.started_ticks, boot_id=process.boot_id
            )
            found.append(child)
    return found


def _read_stat(pid: int) -> _Stat | None:
    try:
        return _parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return None


def _parse_stat(line: str) -> _Stat:
    # The program's name may hold spaces and parentheses, so fields are counted after the last ")".
    fields = line[line.rindex(")") + 2 :].split()
    return _Stat(
        state=fields[0], parent=int(fields[1]), threads=int(fields[17]), started_ticks=int(fields[19])
    )


def _read_boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
