"""Deduplication: which id an event has, and which events are new.

`identity_rule.py` and `unique_id.py` make ids, `deduplicate.py` compares them with the key index, and
`index_compaction.py` keeps that index small.
"""
