"""JSON: blocks of messages read by Arrow's JSON reader, or without a parser where all messages look alike.

`decoder.py` leads: `prefilter.py` screens bytes, `fast_path.py` reads uniform messages, `columns.py` makes the declared
types, `decimals.py` guards against the reader's faults, `explain.py` says why a message is rejected.
"""
