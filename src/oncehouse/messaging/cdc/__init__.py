"""Changes of a PostgreSQL database through Debezium on Kafka Connect: connectors, pipelines, and the watch on slots.

Debezium reads the log and the pipeline takes it on; here is only what sets both up and tells how they fare.
"""
