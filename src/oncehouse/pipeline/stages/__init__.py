"""The stages that a process runs: ingest, load and retention, with their leases and threads.

`supervisor` starts and stops them, `kafka_stream` reads Kafka, `load_stage` sends batches. May import everything of
the pipeline but `run` and `external`. Start reading at `supervisor.py`.
"""
