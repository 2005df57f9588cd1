"""What each inbox costs on a real PostgreSQL and Redis: messages a second, statements of an idle worker, bytes a row.

Prints a table; `--messages` says how many (20,000). Not part of `make bench`: the figures stand beside the decision.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import redis
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from oncehouse.common.database import open_engine
from oncehouse.devstack.stack import Stack
from oncehouse.messaging.inbox.once import Inbox
from oncehouse.messaging.inbox.redis_inbox import RedisInbox
from oncehouse.messaging.inbox.stored import StoredInbox
from oncehouse.messaging.inbox.types import WorkerSettings
from oncehouse.messaging.message import Message

BATCH = 1_000
IDLE_SECONDS = 20.0


def messages(count: int, name: str) -> list[Message]:
    return [
        Message(topic=name, partition=0, offset=at, key=b"%d" % (at % 500), value=b"x" * 200)
        for at in range(count)
    ]


def effect(session: Session, _message: object) -> None:
    session.execute(text("INSERT INTO effects DEFAULT VALUES"))


def timed(count: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def measure_once(engine: Engine, count: int) -> list[tuple[str, float]]:
    inbox = Inbox()
    alone = inbox.once(consumer="alone", keep="7d")(effect)
    batches = inbox.once(consumer="batches", keep="7d")(effect)

    def run(handler: Callable[..., object], each: list[object]) -> None:
        for one in each:
            with Session(engine) as session, session.begin():
                handler(session, one)

    single, many = messages(count // 10, "alone"), messages(count, "batches")
    groups = [many[at : at + BATCH] for at in range(0, count, BATCH)]
    return [
        ("the handler alone, a transaction a message", timed(len(single), lambda: run(effect, single))),
        ("once, a transaction a message", timed(len(single), lambda: run(alone, single))),
        (f"once, batches of {BATCH:,}", timed(count, lambda: run(batches, groups))),
        (f"once, batches of {BATCH:,}, all repeats", timed(count, lambda: run(batches, groups))),
    ]


def measure_stored(engine: Engine, count: int) -> list[tuple[str, float]]:
    inbox = StoredInbox("bench", engine)
    many = messages(count, "stored")
    stored = timed(count, lambda: [inbox.store(many[at : at + BATCH]) for at in range(0, count, BATCH)])
    worker = inbox.worker(effect, settings=WorkerSettings(concurrency=8))
    worked = timed(count, lambda: worker.run(once=True))
    return [
        (f"stored inbox, store in batches of {BATCH:,}", stored),
        ("stored inbox, one worker, 8 threads", worked),
    ]


def measure_idle(url: str) -> float:
    """Statements a second of a worker with nothing to do."""
    engine = create_engine(url)
    counted = [0]

    @event.listens_for(engine, "after_cursor_execute")
    def count(*_: object) -> None:
        counted[0] += 1

    worker = StoredInbox("idle", engine).worker(effect)
    thread = threading.Thread(target=worker.run)
    thread.start()
    time.sleep(5)  # until its waits have grown
    before = counted[0]
    time.sleep(IDLE_SECONDS)
    found = (counted[0] - before) / IDLE_SECONDS
    worker.stop()
    thread.join()
    engine.dispose()
    return found


def measure_redis(url: str, count: int) -> list[tuple[str, float]]:
    client = redis.Redis.from_url(url)
    inbox = RedisInbox(client)
    alone = inbox.once(consumer="alone", keep="1h")(lambda _one: None)
    batches = inbox.once(consumer="batches", keep="1h")(lambda _given: None)
    single, many = messages(count // 10, "alone"), messages(count, "batches")
    found = [
        ("Redis, a message at a time", timed(len(single), lambda: [alone(one) for one in single])),
        (
            f"Redis, batches of {BATCH:,}",
            timed(count, lambda: [batches(many[at : at + BATCH]) for at in range(0, count, BATCH)]),
        ),
    ]
    client.close()
    return found


def bytes_a_row(engine: Engine, table: str) -> float:
    with engine.connect() as connection:
        size, rows = connection.execute(
            text(f"SELECT pg_total_relation_size('{table}'), (SELECT count(*) FROM {table})")
        ).one()
    return float(size / rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    count = parser.parse_args().messages
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-"))
    stack = Stack(folder=folder)
    try:
        stack.up(["postgres", "redis"])
        engine = open_engine(stack.postgres.url, setting="database")
        StoredInbox("bench", engine).create_tables()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (number BIGSERIAL PRIMARY KEY)"))
        rows = [
            *measure_once(engine, count),
            *measure_stored(engine, count),
            *measure_redis(stack.redis.url, count),
        ]
        for name, rate in rows:
            print(f"{name:<48} {rate:>10,.0f} messages/s")
        print(f"{'an idle worker':<48} {measure_idle(stack.postgres.url):>10.2f} statements/s")
        for table in ("oncehouse_inbox_seen", "oncehouse_inbox"):
            print(f"{table:<48} {bytes_a_row(engine, table):>10,.0f} bytes a row, indexes included")
        engine.dispose()
    finally:
        stack.down()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
