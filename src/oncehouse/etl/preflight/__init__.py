"""`oncehouse etl check`: whether server, user, tables and transforms serve the lineage. Changes nothing.

It imports steps, quality, state and lineage. Start in `lineage_check.py`.
"""
