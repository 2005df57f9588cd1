"""Formats: bytes of records into rows of the declared fields, a block at a time; a bad record costs only itself.

`base.py` says what a format and a decoder are, `factory.py` makes the one that a pipeline file names. Each format has a
folder or a module of its own, which begins at its module `decoder`. May import `convert`, and nothing of ingest.
"""
