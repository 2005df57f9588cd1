"""What a user declares of a sync: the class, its columns, its ClickHouse engine, and rows as Arrow blocks.

It imports changes and state. Start in `model_sync.py` (the class) and `declaration.py` (the class read once).
"""
