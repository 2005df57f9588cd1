"""Change data capture from PostgreSQL through Debezium on Kafka Connect: set-up and monitoring.

Debezium reads the database's log and the pipeline takes the changes on; this package writes the files of connectors and
pipelines (start reading at `generate`), applies connectors (`apply_connector`) and watches replication slots
(`health`). Imports `database` and `message`.
"""
