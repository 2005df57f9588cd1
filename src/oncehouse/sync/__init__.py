"""Model sync: rows of Django and SQLAlchemy models in ClickHouse tables, while the program goes on writing.

Users import from `oncehouse.sync.django` or `oncehouse.sync.sqlalchemy`. Start in `model/model_sync.py` (what a user
declares), then follow a change: `changes/`, `rounds/`, `table/`.
"""
