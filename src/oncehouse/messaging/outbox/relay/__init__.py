"""The relay: moves committed outbox rows to Kafka, at least once each and in order by key.

Start reading at `relay` (leases, polling, shutdown), then `worker` (one round: claim, send, settle) and `sender` (order
and gaps). `sql_store` and `postgres_store` are the two implementations of `types.RelayStore`.
"""
