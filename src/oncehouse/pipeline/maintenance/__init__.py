"""What keeps a ledger small and shows that it is whole: retention, packs of small files, `oncehouse verify`.

Start reading at `retention.py`, `file_packs.py` and `verify.py`.
"""
