"""Real servers for development and tests: Kafka, ClickHouse, PostgreSQL, Redis, ZooKeeper, S3 and Spark.

All servers listen on 127.0.0.1 only, keep their data in one folder that only its owner can read, and ask for no
password: they trust every user of this machine and are never for production. `proxies/` lets requests fail, and
`chaos/` is `oncehouse chaos`.

It may import every package but `cli`; only `cli` imports it. Start with `stack.py`, then `server_base.py` for what
each server implements.
"""
