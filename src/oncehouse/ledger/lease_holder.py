"""Who holds a lease: this process, named so that another one on the same machine knows whether it lives.

A process that died without releasing its lease keeps others waiting until it runs out. On the very same
machine (same boot, same process namespace) its death can be seen at once; elsewhere the lease decides.
Fencing tokens keep the ledger safe either way.
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path


def describe_holder() -> str:
    """Another name each time, so that two runs in one process do not take each other for themselves."""
    name = f"{socket.gethostname()} #{uuid.uuid4().hex[:6]}"
    return f"{name} pid {os.getpid()} ({_machine()} {_started(os.getpid())})"


def is_dead(holder: str) -> bool:
    """True only when the holder was a process of this machine that is surely gone."""
    try:
        _, rest = holder.rsplit(" pid ", 1)
        pid_text, facts = rest.split(" (", 1)
        machine, started = facts.rstrip(")").rsplit(" ", 1)
        pid = int(pid_text)
    except ValueError:
        return False
    return machine == _machine() != "" and not _is_running(pid, started)


def _is_running(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's process, about which /proc may show nothing
    return _started(pid) == started


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process was started, in clock ticks: distinguishes a recycled pid from the process that had it before."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    except OSError:
        return "gone"
    return "gone" if fields[0] == "Z" else fields[19]
