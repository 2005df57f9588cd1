"""Starts a program (`ordinary_rights.py PROGRAM …`) for which the rights of files hold, also where root starts it."""

from __future__ import annotations

import ctypes
import os
import sys

_DROP_FROM_BOUNDS = 24
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root may use every file.
_OVERRIDES = (1, 2)


def under_ordinary_rights(command: list[str]) -> list[str]:
    """The command, started so that it and all that it starts are refused what the rights of files refuse."""
    return [sys.executable, __file__, *command]


def _exec(command: list[str]) -> None:
    if os.geteuid() == 0:
        library = ctypes.CDLL(None, use_errno=True)
        for capability in _OVERRIDES:
            if library.prctl(_DROP_FROM_BOUNDS, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")
    os.execv(command[0], command)


if __name__ == "__main__":
    _exec(sys.argv[1:])
