"""All rows of a model, or those of some keys, sent once more, in parallel to the rounds.

It imports rounds, table, model and changes. Start in `backfill.py`.
"""
