"""Comparison of the database with the ClickHouse table, and repair of what differs.

It imports backfill, rounds, table, model and changes. Start in `verify.py`.
"""
