"""Expectations: the query that measures them, what its figures mean, and the log of their results.

It imports lineage and state. Start in `expectations.py`.
"""
