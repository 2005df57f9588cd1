"""Avro: bodies of one schema read side by side, a cursor each. Start with `decoder.py`, then `columns.py`."""
