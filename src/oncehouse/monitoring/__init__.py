"""The read model: what the ledgers and servers say, as frozen values that CLI, dashboard and metrics share.

Imports the packages below it (pipeline, etl, messaging, sync, ledger); never cli, web or metrics. Start at
`monitor.py`, which reads everything, and `overview.py`, which reads one pipeline; `batches.py` and `dead_letters.py`
read one kind. `actions.py` has the user actions.
"""
