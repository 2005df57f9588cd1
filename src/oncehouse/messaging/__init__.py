"""Messages between services: sent in the sender's transaction, handled once, retried, never lost.

Needs Kafka and a SQL database, and imports nothing of the pipeline, its ledger or Spark. `outbox/` sends, `consumer/`
receives with `retries/` for failed messages, `inbox/` handles each message once, `cdc/` sets up Debezium, `django/` is
outbox and inbox as a Django app. The modules here are shared by these packages. The public names below are imported on
first use; more are in `oncehouse.messaging.consumer` and `oncehouse.messaging.django`.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports

if TYPE_CHECKING:
    from oncehouse.messaging.clickhouse_handler import ClickHouseHandler
    from oncehouse.messaging.consumer.consumer import Consumer
    from oncehouse.messaging.inbox.http_endpoint import InboxEndpoint
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
    "InboxEndpoint",
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
    "ClickHouseHandler": "oncehouse.messaging.clickhouse_handler",
    "Consumer": "oncehouse.messaging.consumer.consumer",
    "DeadLetterTopic": "oncehouse.messaging.retries.retry_topics",
    "Inbox": "oncehouse.messaging.inbox.once",
    "InboxEndpoint": "oncehouse.messaging.inbox.http_endpoint",
    "Message": "oncehouse.messaging.message",
    "Outbox": "oncehouse.messaging.outbox.outbox",
    "OutboxMessage": "oncehouse.messaging.outbox.encoding",
    "RedisInbox": "oncehouse.messaging.inbox.redis_inbox",
    "Relay": "oncehouse.messaging.outbox.relay.relay",
    "RelaySettings": "oncehouse.messaging.outbox.relay.settings",
    "RetryTopics": "oncehouse.messaging.retries.retry_topics",
    "StoredInbox": "oncehouse.messaging.inbox.stored",
    "WorkerSettings": "oncehouse.messaging.inbox.types",
}


__getattr__, __dir__ = lazy_exports(
    __name__,
    _HOMES,
    extra="messaging",
    extras={"ClickHouseHandler": "messaging,clickhouse", "InboxEndpoint": "inlet"},
)
