"""Named points at which a test may let the process die, as if by kill -9.

Off unless ONCEHOUSE_CRASH_AT names a point; then reaching it ends the process at once, without any clean-up.
`name:3` lets it be reached twice and dies the third time.
"""

from __future__ import annotations

import os
import signal

_NAME, _, _TIMES = os.environ.get("ONCEHOUSE_CRASH_AT", "").partition(":")
_left = int(_TIMES or 1)


def reach(name: str) -> None:
    global _left  # noqa: PLW0603 - one process, one countdown
    if name == _NAME:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
