"""What it costs a writer to wake the relay: an INSERT alone, and with ways of pg_notify in its transaction.

    python benchmarks/outbox_wake.py [--transactions 4000]

Real PostgreSQL. One writer, then eight, each committing one row a transaction; best of three rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from oncehouse.devstack.stack import Stack

CREATE = "CREATE TABLE {} (sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value bytea NOT NULL)"
MEMBERS = "CREATE TABLE {}_members (name text PRIMARY KEY, asleep boolean NOT NULL)"
NOTIFY = "PERFORM pg_notify('{}', '');"
ASLEEP = f"IF EXISTS (SELECT 1 FROM {{}}_members WHERE asleep) THEN {NOTIFY} END IF;"
FUNCTION = "CREATE FUNCTION {}_wake() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s RETURN NULL; END $$"
TRIGGER = "CREATE TRIGGER wake AFTER INSERT ON {} FOR EACH STATEMENT EXECUTE FUNCTION {}_wake()"
INSERT = "INSERT INTO {} (value) VALUES (%s)"
VALUE = b"x" * 200

Write = Callable[[psycopg.Cursor[object], str], object]


def insert_alone(cursor: psycopg.Cursor[object], table: str) -> None:
    cursor.execute(INSERT.format(table), [VALUE])


def notify_after(cursor: psycopg.Cursor[object], table: str) -> None:
    cursor.execute(INSERT.format(table), [VALUE])
    cursor.execute("SELECT pg_notify(%s, '')", [table])


def notify_in_returning(cursor: psycopg.Cursor[object], table: str) -> None:
    cursor.execute(INSERT.format(table) + f" RETURNING pg_notify('{table}', '')", [VALUE])


# The statement, the trigger's body where there is one, and whether somebody listens.
WAYS: dict[str, tuple[Write, str, bool]] = {
    "insert alone": (insert_alone, "", False),
    "a statement of its own": (notify_after, "", True),
    "RETURNING pg_notify": (notify_in_returning, "", True),
    "a trigger": (insert_alone, NOTIFY, True),
    "a trigger, all awake": (insert_alone, ASLEEP, True),
}


def commit_rows(url: str, table: str, write: Write, transactions: int) -> None:
    with psycopg.connect(url) as connection:
        for _ in range(transactions):
            with connection.cursor() as cursor:
                write(cursor, table)
            connection.commit()


def measure(url: str, table: str, write: Write, writers: int, transactions: int) -> float:
    """Microseconds a transaction, as its writer sees them."""
    threads = [
        threading.Thread(target=commit_rows, args=(url, table, write, transactions // writers))
        for _ in range(writers)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - started) * 1e6 / (transactions // writers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transactions", type=int, default=4000)
    transactions = parser.parse_args().transactions
    with tempfile.TemporaryDirectory(prefix="oncehouse-wake-") as folder:
        stack = Stack(folder=Path(folder))
        stack.up(["postgres"])
        try:
            run(stack.postgres.url.replace("+psycopg", "", 1), transactions)
        finally:
            stack.down()


def run(url: str, transactions: int) -> None:
    print(f"{'µs a transaction':>24} {'1 writer':>10} {'8 writers':>10}")
    for number, (name, (write, body, listens)) in enumerate(WAYS.items()):
        table = f"wake_{number}"
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in (CREATE, MEMBERS, *((FUNCTION % body, TRIGGER) if body else ())):
                connection.execute(statement.replace("{}", table))
            if listens:
                connection.execute(f"LISTEN {table}")
            one, eight = (
                min(measure(url, table, write, writers, transactions) for _ in range(3)) for writers in (1, 8)
            )
        print(f"{name:>24} {one:>10.0f} {eight:>10.0f}")


if __name__ == "__main__":
    main()
