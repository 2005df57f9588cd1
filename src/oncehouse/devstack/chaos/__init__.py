"""`oncehouse chaos`: the faults that a pipeline must survive, run over a user's pipeline file.

Everything runs on a private stack: fields, identity, `shape` and tables of the file are kept; its servers, its ledger
and its secrets are not used. Imports `pipeline`, `ledger`, `clickhouse` and the rest of `devstack`. Start with
`run_chaos.py` (file to report), then `scenarios.py` and `oracle.py`.
"""
