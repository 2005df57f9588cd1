"""Modules that several packages share and that know nothing of pipelines: time, text, databases, Kafka, logs, secrets.

Imports `errors` alone. Each module stands by itself.
"""
