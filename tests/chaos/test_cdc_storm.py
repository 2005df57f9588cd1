"""Tables that are followed while writers race and servers are killed: `FINAL` still equals PostgreSQL's table."""

from __future__ import annotations

import random
import threading
import time

import psycopg
import pytest

from captured_database import CapturedDatabase, Columns

WRITERS = 3
ROUNDS = 5
KEYS = 60
PAUSE_SECONDS = 0.005
"""Between a writer's transactions: what races is the point, not a backlog that takes minutes to follow."""
STOCK: Columns = {name: (name, name) for name in ("id", "owner", "amount", "note")}
TABLE = """
CREATE TABLE stock (id int PRIMARY KEY, owner int NOT NULL, amount bigint NOT NULL, note text NOT NULL);
ALTER TABLE stock REPLICA IDENTITY FULL;
INSERT INTO stock SELECT i, 0, 0, 'first' FROM generate_series(1, 30) i
"""
CHANGES = (
    "INSERT INTO stock VALUES ({key}, {owner}, {number}, 'made') ON CONFLICT (id) DO UPDATE SET amount = {number}",
    "UPDATE stock SET amount = amount + 1, owner = {owner} WHERE id = {key}",
    "UPDATE stock SET note = 'n' || {number} WHERE id BETWEEN {key} AND {key} + 5",
    "UPDATE stock SET id = {other} WHERE id = {key} AND NOT EXISTS (SELECT 1 FROM stock WHERE id = {other})",
    "DELETE FROM stock WHERE id = {key}",
    "DELETE FROM stock WHERE id = {key}; INSERT INTO stock VALUES ({key}, {owner}, {number}, 'anew')",
)


def write(url: str, owner: int, seed: int, stop: threading.Event) -> None:
    """Transactions of a few changes, some rolled back; conflicts and lost connections happen to applications too."""
    chance = random.Random(seed)
    connection: psycopg.Connection | None = None
    while not stop.is_set():
        try:
            if connection is None:
                connection = psycopg.connect(url, connect_timeout=5)
            for _ in range(chance.randint(1, 8)):
                change = chance.choice(CHANGES).format(
                    key=chance.randint(1, KEYS),
                    other=chance.randint(1, KEYS),
                    owner=owner,
                    number=chance.randint(0, 1 << 40),
                )
                connection.execute(change)
            connection.rollback() if chance.random() < 0.1 else connection.commit()
            time.sleep(PAUSE_SECONDS)
        except (psycopg.errors.IntegrityError, psycopg.errors.DeadlockDetected):
            assert connection is not None
            connection.rollback()
        except psycopg.OperationalError:
            if connection is not None:
                connection.close()
            connection = None
            time.sleep(0.2)
    if connection is not None:
        connection.close()


@pytest.mark.timeout(900)
def test_racing_writers_and_killed_servers_leave_no_difference(cdc: CapturedDatabase, stack, database):
    seed = random.SystemRandom().randint(0, 1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    cdc.database.execute(TABLE)
    cdc.follow("stock")
    cdc.edit("stock")
    cdc.create_table("stock")
    stop = threading.Event()
    writers = [
        threading.Thread(target=write, args=(cdc.url, number, seed + number, stop))
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    try:
        for _ in range(ROUNDS):
            trouble(stack, chance)
            cdc.run("stock")
    finally:
        stop.set()
        for writer in writers:
            writer.join(60)
    cdc.reconnect()
    cdc.wait_for_kafka("INSERT INTO stock VALUES (1000, 0, 0, 'last') ON CONFLICT DO NOTHING")
    cdc.repeat_records(f"{cdc.prefix}.public.stock", 500)
    cdc.run("stock")
    cdc.assert_same("stock", f"{database}.stock", STOCK)


def trouble(stack, chance: random.Random) -> None:
    """A few seconds, and a server that dies in them."""
    time.sleep(chance.uniform(0.5, 4))
    victim = chance.choice(("connect", "connect", "postgres", "kafka"))
    stack.kill(victim)
    stack.start(victim)
    if victim == "postgres":
        # Its connectors' tasks may have given up; an operator would start them again.
        stack.kill("connect")
        stack.start("connect")
    time.sleep(chance.uniform(0.5, 3))
