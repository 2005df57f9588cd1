"""The files of the ledger: where they lie, their checksums, the local cache, and the format of the key index.

Imports `ledger.models`, `common` and `config`. Start with `file_store.py`.
"""
