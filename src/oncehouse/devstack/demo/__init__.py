"""`make demo` and `make cluster-demo`: a pipeline that is killed while it runs, and a count of what arrived.

Imports `pipeline`, `ledger`, `clickhouse` and the rest of `devstack`. Start with `demo.py`; `events.py` makes the
events, which benchmarks use too, and `results.py` compares the table with them.
"""
