"""A round: read the rows of changed keys, insert them under a token, remove the operations; and runs of rounds.

It imports table, model and changes. Start in `round.py`, whose order of steps is what keeps data right.
"""
