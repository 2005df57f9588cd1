"""JSON: blocks of messages read by Arrow's JSON reader, or without a parser where all messages look alike.

`decoder.py` leads: `prefilter.py` screens bytes, `fast_path.py` reads uniform messages, `columns.py` makes the declared
types, `arrow_limits.py` finds the numbers that Arrow's reader cannot take, `message_errors.py` says why a message is
rejected.
"""
