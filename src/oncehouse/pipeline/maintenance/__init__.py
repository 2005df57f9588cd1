"""What keeps a ledger small and shows that it is whole: retention, packing of small files, `oncehouse verify`.

Start reading at `retention.py` and `verify.py`.
"""
