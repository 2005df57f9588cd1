"""Queries that count what the ledger holds, for status, checks, metrics and the dashboard. They write nothing.

Imports `ledger.catalog` and `ledger.models`. Start with `summary.py`.
"""
