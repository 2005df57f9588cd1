"""Inserts batches into ClickHouse, each exactly once.

`batch_planner` puts parts into batches, `insert_rate` says how often and how large, `insert_task` is one attempt at one
batch, `attempt` is what such an attempt starts with, `parked_inserts` ends what parked batches may still send. What is
sent and when it is sent again is in `clickhouse/insert`. May import ingest and what is below it. Start reading at
`insert_task.py`.
"""
