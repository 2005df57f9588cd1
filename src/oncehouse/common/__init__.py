"""Modules that several packages share and that know nothing of pipelines: time, text, databases, Kafka, logs, secrets.

Imports `errors` alone. Each module stands by itself: start with the one that has the name of the subject, such as
`database.py` (connections, the server's clock, errors), `kafka_client.py`, `formatting.py` (durations, sizes, text) or
`redaction.py`.
"""
