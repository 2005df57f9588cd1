"""Debezium's change events: envelopes are read by the JSON decoder. Start with `decoder.py`."""
