"""Commands of `oncehouse sync`: rows of Django and SQLAlchemy models in ClickHouse.

Start in `app.py`, which runs the syncs and makes their tables; `backfill.py` and `verify.py` walk over all keys, with
their progress in `key_progress.py`; `options.py` finds the syncs that a user names. The work is done in
`oncehouse.sync`.
"""
