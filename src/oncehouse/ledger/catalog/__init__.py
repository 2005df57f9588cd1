"""The tables of the ledger: one module for each kind of row, over the transactions of `database.py`.

Imports `ledger.storage`, `ledger.lease_terms`, `ledger.models` and `common`. `schema.py` defines the tables and
`migrations.py` upgrades those of older versions; start with `database.py`.
"""
