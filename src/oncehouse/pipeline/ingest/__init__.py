"""Ingest: from records of Kafka or a DataFrame to the files of one epoch and its registration in the catalog.

`epoch.py` runs one epoch on the driver; `read_task.py` runs in the workers. `kafka_source.py`, `kafka_log.py` and
`log_history.py` say what is read and whether it is still the log that was read before; `backpressure.py` says when.
Ingest calls formats, transform and dedup, and knows nothing of loading.
"""
