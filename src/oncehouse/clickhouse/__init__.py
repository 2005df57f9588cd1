"""The connection to ClickHouse and the statements that oncehouse sends.

`client.py` wraps the driver; `insert/` sends one batch at most once; `preflight/` checks tables, settings and grants
before data moves. Imports `config`, `column_types` and `common`. Start with `client.py`, then `insert/insert_batch.py`.
"""
