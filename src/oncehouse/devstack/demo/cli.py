"""The command line of a demo: it tells what happens with the seconds since its start, and ends as its result did."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from oncehouse.errors import OncehouseError

_INTERRUPTED_EXIT_CODE = 130


class DemoOutcome(Protocol):
    @property
    def went_well(self) -> bool: ...

    def lines(self) -> list[str]: ...


class Demo(Protocol):
    def __call__(self, *, events: int, say: Callable[[str], None]) -> DemoOutcome: ...


def show_demo(demo: Demo, arguments: Sequence[str] | None, *, described: str | None, events: int) -> int:
    """`[--events N]`; gives back the exit code: 0 only when all went well."""
    parser = argparse.ArgumentParser(description=described)
    parser.add_argument("--events", type=int, default=events, help="how many events, duplicates included")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", flush=True)

    try:
        result = demo(events=asked.events, say=say)
    except OncehouseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT_CODE
    say("done")
    print("\n".join(result.lines()), flush=True)
    return 0 if result.went_well else 1
