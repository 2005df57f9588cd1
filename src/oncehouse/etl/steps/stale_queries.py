"""Before a range runs again: end what an earlier attempt at it may still be doing on the server.

Every insert of a topic has a query id that begins with the topic's own mark. The process that runs an open range
again, after a crash, a failure without an answer, or a take-over, kills those queries and waits until they are gone;
from then on a range has been inserted or it has not. Reaches the server that it talks to, and no other of a cluster.
"""

from __future__ import annotations

import time
import uuid

from oncehouse.clickhouse.client import Client
from oncehouse.errors import TransientError
from oncehouse.etl.lineage.topic import Topic

_PATIENCE_SECONDS = 60.0


def make_query_id(topic: Topic) -> str:
    return f"{_mark(topic)}{uuid.uuid4().hex}"


def end_inserts(client: Client, topic: Topic) -> int:
    """Kill what still runs for the topic, and wait until it has ended; how many there were."""
    ended: set[str] = set()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while running := _find_running(client, topic):
        if time.monotonic() > deadline:
            raise TransientError(
                f"Topic {topic.topic}: an earlier insert ({running[0]}) does not end although it was killed. "
                "The topic is tried again; look at system.processes."
            )
        ended.update(running)
        client.command("KILL QUERY WHERE query_id IN {ids:Array(String)} SYNC", {"ids": running})
    return len(ended)


def _find_running(client: Client, topic: Topic) -> list[str]:
    rows = client.query(
        "SELECT query_id FROM system.processes WHERE startsWith(query_id, {mark:String})",
        {"mark": _mark(topic)},
    )
    return [query_id for (query_id,) in rows]


def _mark(topic: Topic) -> str:
    return f"oncehouse-etl:{topic.dst}:{topic.topic}:"
