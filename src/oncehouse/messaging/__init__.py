"""Messages between services: handed over in the sender's transaction, handled once, retried, never lost.

A room that stands on its own: it needs Kafka and a SQL database, and nothing of the pipeline, its ledger or Spark. The
names below are imported when they are first asked for, so that a program pays for what it uses.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports

if TYPE_CHECKING:
    from oncehouse.messaging.clickhouse_handler import ClickHouseHandler
    from oncehouse.messaging.consumer.consumer import Consumer
    from oncehouse.messaging.inbox.http_endpoint import Inlet
    from oncehouse.messaging.inbox.once import Inbox
    from oncehouse.messaging.inbox.redis_inbox import RedisInbox
    from oncehouse.messaging.inbox.stored import StoredInbox
    from oncehouse.messaging.inbox.types import WorkerSettings
    from oncehouse.messaging.message import Message
    from oncehouse.messaging.outbox.encoding import OutboxMessage
    from oncehouse.messaging.outbox.outbox import Outbox
    from oncehouse.messaging.outbox.relay.relay import Relay
    from oncehouse.messaging.outbox.relay.settings import RelaySettings
    from oncehouse.messaging.retries.retry_topics import DeadLetterTopic, RetryTopics

__all__ = [
    "ClickHouseHandler",
    "Consumer",
    "DeadLetterTopic",
    "Inbox",
    "Inlet",
    "Message",
    "Outbox",
    "OutboxMessage",
    "RedisInbox",
    "Relay",
    "RelaySettings",
    "RetryTopics",
    "StoredInbox",
    "WorkerSettings",
]

_HOMES = {
    "WorkerSettings": "oncehouse.messaging.inbox.types",
    "Inlet": "oncehouse.messaging.inbox.http_endpoint",
    "ClickHouseHandler": "oncehouse.messaging.clickhouse_handler",
    "Consumer": "oncehouse.messaging.consumer.consumer",
    "DeadLetterTopic": "oncehouse.messaging.retries.retry_topics",
    "Inbox": "oncehouse.messaging.inbox.once",
    "Message": "oncehouse.messaging.message",
    "Outbox": "oncehouse.messaging.outbox.outbox",
    "OutboxMessage": "oncehouse.messaging.outbox.encoding",
    "RedisInbox": "oncehouse.messaging.inbox.redis_inbox",
    "Relay": "oncehouse.messaging.outbox.relay.relay",
    "RelaySettings": "oncehouse.messaging.outbox.relay.settings",
    "RetryTopics": "oncehouse.messaging.retries.retry_topics",
    "StoredInbox": "oncehouse.messaging.inbox.stored",
}


_EXTRAS = {"ClickHouseHandler": "messaging,clickhouse", "Inlet": "inlet"}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES, extra="messaging", extras=_EXTRAS)
