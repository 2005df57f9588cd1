"""Protobuf messages, read by ptars under descriptors of the wanted fields. Start with `decoder.py`."""
