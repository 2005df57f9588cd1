"""The inbox: a message is handled once, because its id or the message itself is stored with the handler's effects.

Start reading at `once` (ids of handled messages in the handler's own transaction), `redis_inbox` (the same in Redis,
with weaker guarantees) or `stored` (messages are stored first and handled later). A stored inbox is worked off by
`worker` over `dispatcher`; `key_queues` decides which message may run next, `handler_call` makes one attempt,
`row_updates` stores its result. `http_endpoint` accepts messages over HTTP. Imports `bucket_leases`, `database` and
`message`.
"""
