"""Memory of a process, by the kernel's own book."""

from __future__ import annotations

from pathlib import Path


def peak_bytes(pid: int | str) -> int:
    """The most that a process ever had in memory, what it maps from files included; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
