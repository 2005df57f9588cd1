"""Handlers of the inbox in processes of their own, for tests that kill them.

As a module: `oncehouse inbox work inbox_job:bill`. As a script: `inbox_job.py URL RUN@POINT …` performs the runs one
after the other, each in a forked process that has to die at its point, as if by kill -9. A run is `once` or
`once_apart` (messages delivered under `@inbox.once`), or the name of a handler that a worker runs. The defects are
seeded on purpose.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

from sqlalchemy.orm import Session

from inbox_examples import effect, message
from oncehouse.common import failpoints
from oncehouse.common.backoff import Backoff
from oncehouse.common.database import open_engine
from oncehouse.messaging.inbox.once import Inbox
from oncehouse.messaging.inbox.stored import StoredInbox
from oncehouse.messaging.inbox.types import WorkerSettings
from oncehouse.messaging.message import Message

QUICK = WorkerSettings(
    concurrency=4,
    max_attempts=3,
    backoff=Backoff(base_seconds=0.0, longest_seconds=0.0),
    lease_seconds=0.6,
    poll_seconds=0.05,
)
DELIVERED = [message(str(number)) for number in range(4)]


def bill(session: Session, given: Message) -> None:
    session.execute(effect(given))


def bill_slowly(session: Session, given: Message) -> None:
    session.execute(effect(given))
    time.sleep(0.01)


def bill_apart(session: Session, given: Message) -> None:
    """Defect: the effect commits in a transaction of its own."""
    with Session(session.get_bind().engine) as other, other.begin():
        other.execute(effect(given))


def die(_session: Session, given: Message) -> None:
    if given.key == b"deadly":
        failpoints.reach("job.dies")


def deliver(url: str, *, apart: bool) -> None:
    engine = open_engine(url, setting="database")
    handler = Inbox().once(consumer="billing", keep="7d")(bill)
    if apart:
        # Defect: what is remembered commits before the effects do.
        remember = Inbox().once(consumer="billing", keep="7d")(lambda _session, _given: True)

        def handler(session: Session, given: Message) -> None:
            with Session(engine) as other, other.begin():
                new = remember(other, given)
            if new:
                bill(session, given)

    for one in DELIVERED:
        with Session(engine) as session, session.begin():
            handler(session, one)
            failpoints.reach("job.handled")
        failpoints.reach("job.committed")
    engine.dispose()


def work(url: str, handler: str) -> None:
    StoredInbox("orders", url).worker(globals()[handler], settings=QUICK).run()


def die_at(point: str, run: Callable[[], None]) -> None:
    name, _, times = point.partition(":")
    pid = os.fork()
    if pid == 0:
        failpoints._NAME, failpoints._left = name, int(times or 1)
        run()
        os._exit(1)  # the point was never reached
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL, f"{point} was not reached"


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        mode, _, crash_at = argument.partition("@")
        if mode.startswith("once"):
            die_at(crash_at, partial(deliver, sys.argv[1], apart=mode == "once_apart"))
        else:
            die_at(crash_at, partial(work, sys.argv[1], mode))
