"""Messages between services: handed over in the sender's transaction, handled once, retried, never lost.

A room that stands on its own: it needs Kafka and a SQL database, and nothing of the pipeline, its ledger or Spark.
"""
