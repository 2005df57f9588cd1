"""A service that writes to an outbox, for tests: run as a program, it writes until it has committed so many messages.

Every message belongs to a key whose number it takes under a lock, as a service does with its own rows: so the order of
a key's messages is known. Some transactions are rolled back at the end, some are slow to commit. At the end it prints
what it committed and what it rolled back, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time

from sqlalchemy import create_engine, text

from oncehouse.messaging import Outbox, OutboxMessage

KEYS = 200
MOST_OF_A_KEY = 20
ROLLED_BACK_SHARE = 0.2
SLOW_SHARE = 0.02
MAKE_COUNTERS = "CREATE TABLE counters (key integer PRIMARY KEY, number integer NOT NULL)"
FILL_COUNTERS = f"INSERT INTO counters SELECT key, 0 FROM generate_series(0, {KEYS - 1}) AS key"
TAKE = text("UPDATE counters SET number = number + :taken WHERE key = :key RETURNING number - :taken")


def make_message(topic: str, writer: int, key: int, number: int) -> OutboxMessage:
    event = {
        "project": f"key-{key}",
        "event_type": f"writer-{writer}",
        "product_id": number,
        "note": "n" * 50,
    }
    return OutboxMessage(topic=topic, key=f"key-{key}", value=event)


def run(url: str, topic: str, rows: int, writer: int, seed: int) -> dict[str, list[object]]:
    rng = random.Random(seed + writer)
    outbox, engine = Outbox(), create_engine(url)
    committed: list[tuple[str, int, int]] = []
    rolled_back: list[str] = []
    while len(committed) < rows:
        # In one order for all writers, so that they never wait for each other in a circle.
        keys = sorted(rng.sample(range(KEYS), rng.randint(1, 3)))
        with engine.connect() as connection, connection.begin() as transaction:
            written: list[tuple[str, int, int]] = []
            for key in keys:
                taken = rng.randint(1, MOST_OF_A_KEY)
                number = connection.execute(TAKE, {"key": key, "taken": taken}).scalar_one()
                messages = [make_message(topic, writer, key, number + more) for more in range(taken)]
                ids = outbox.add_many(connection, messages)
                written += [(str(one), key, number + more) for more, one in enumerate(ids)]
            if rng.random() < SLOW_SHARE:
                time.sleep(rng.random() * 0.3)
            if rng.random() < ROLLED_BACK_SHARE:
                transaction.rollback()
                rolled_back += [one for one, _, _ in written]
            else:
                transaction.commit()
                committed += written
    engine.dispose()
    return {"committed": list(committed), "rolled_back": list(rolled_back)}


if __name__ == "__main__":
    address, name, count, mine, start = sys.argv[1:]
    json.dump(run(address, name, int(count), int(mine), int(start)), sys.stdout)
