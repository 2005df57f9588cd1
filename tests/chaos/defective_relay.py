"""`oncehouse outbox relay` for the tests that kill it, with a defect put in where RELAY_DEFECT names one."""

from __future__ import annotations

import os
import sys

from oncehouse.cli.app import run_command
from oncehouse.messaging.outbox.relay.postgres_store import PostgresStore
from oncehouse.messaging.outbox.relay.types import SendResult, SentPosition
from oncehouse.messaging.outbox.relay.worker import RelayWorker


def settle_first() -> None:
    """Rows are deleted when they are claimed, before Kafka has them."""
    claim = PostgresStore.claim

    def claim_and_delete(self, tokens, **limits):
        rows = claim(self, tokens, **limits)
        seqs = [row.seq for row in rows]
        self.settle(
            tokens, SendResult(acknowledged=seqs, positions=[SentPosition(seq, 0, 0) for seq in seqs])
        )
        return rows

    PostgresStore.claim = claim_and_delete


def send_backwards() -> None:
    """Rows of a round are sent in another order than they were written."""
    send = RelayWorker._send
    RelayWorker._send = lambda self, rows: send(self, rows[::-1])


DEFECTS = {"": lambda: None, "settle": settle_first, "order": send_backwards}

if __name__ == "__main__":
    DEFECTS[os.environ.get("RELAY_DEFECT", "")]()
    sys.exit(run_command(["outbox", "relay", sys.argv[1]]))
