"""Real servers for development, tests and the demo: Kafka, ClickHouse, and PostgreSQL, Redis, ZooKeeper.

Everything listens on 127.0.0.1 only, keeps its data under one owner-only folder and asks for no password: it
trusts every user of this machine and is never for production. Nothing outside this room may know which
program answers behind a URL.
"""
