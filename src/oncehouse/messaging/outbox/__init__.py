"""The outbox: messages written in a service's own transaction, and the relay that sends them to Kafka.

Start reading at `outbox` (how a program adds messages) and `relay/` (how they reach Kafka). Order by key is guaranteed
in four places: `tables` puts all rows of a key into one bucket, `bucket_leases` gives a bucket to one relay at a time,
`relay/sql_store` claims the oldest rows of a bucket and says which stand behind a parked row of their key, and
`relay/worker` with `relay/sender` sends the rows of a bucket in their order, without gaps. `parked` holds what Kafka
refuses. Imports `bucket_leases`, `database` and `message`.
"""
