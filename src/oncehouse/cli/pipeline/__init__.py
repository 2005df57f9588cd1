"""Commands on a pipeline file and its ledger: one module for each command, with its name.

Start in `run.py`, which starts a pipeline and stops it on a signal, or `check.py`, which names what prevents a run.
Commands that only the holder of the ingest lease can perform leave a request in the ledger (`requests.py`). The work
is done in `oncehouse.pipeline`, `oncehouse.ledger` and `oncehouse.monitoring`.
"""
