"""Protobuf schemas: definitions that hold all they need, and the fields and ClickHouse types of their messages.

Start with `definition.py`, then `fields.py`. Reading messages is `pipeline/formats/protobuf`.
"""
