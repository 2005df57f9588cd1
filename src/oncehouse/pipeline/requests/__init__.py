"""Requests of users that the holder of the ingest lease performs between two epochs.

Replaying and editing dead letters, refilling a table, rebuilding the key index, changing the identity rule. Start
reading at `handler.py`.
"""
