"""Syncs that the pipeline feeds from the database's log (WAL): the connector and the pipeline files.

It imports model and messaging's CDC package. Start in `generate.py`.
"""
