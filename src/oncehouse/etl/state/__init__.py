"""The row of each topic: positions, lease, covered ranges, backfill jobs; and the stores that keep it.

It imports the lineage only. Start in `models.py` (the row) and `transitions.py` (every change of it, for all stores).
"""
