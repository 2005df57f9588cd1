"""Retry topics and dead letters: failed messages wait in topics of their own; the consumer goes on with the others.

Start reading at `retry_topics` (the failure policies that users name) and `retry_routing` (which topic comes next).
`blocked_keys` guarantees the order by key. `dead_letter_store` and `dead_letters` serve the commands of
`oncehouse dlq`. Imports `failure_policy` and `message`, never the consumer.
"""
