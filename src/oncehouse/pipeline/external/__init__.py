"""Events that do not come from Kafka: DataFrames through a sink, and imported files.

Also the ledger as DataFrames. Like `run`, this package is a way into the pipeline: no other package of the pipeline
imports it. Start reading at `sink.py`.
"""
