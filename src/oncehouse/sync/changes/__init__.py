"""Operations: keys of a sync that changed, the storages in which they wait, and how writers put them there.

It imports the tables and settings of model sync only. Start in `change.py`, then `storage.py` (what storages promise).
"""
