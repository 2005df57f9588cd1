"""The pipeline from Kafka, DataFrames and files to ClickHouse, on Spark.

An event goes through the packages in this order: `ingest` reads records and registers epochs, `formats` decodes them,
`convert` makes column values, `transform` computes columns, `dedup` decides which events are new, `load` inserts
batches. `stages` runs ingest, load and retention; `spark` holds what is Spark's own. Around them: `schema`,
`dead_letters`, `checks`, `requests`, `maintenance`, `repair`, and `external` for DataFrames and files.

Which package may import which is a contract of import-linter in pyproject.toml. Start reading at `run.py`.
"""
