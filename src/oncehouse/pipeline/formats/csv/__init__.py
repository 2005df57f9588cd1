"""Delimited text: `splitter.py` finds lines and columns, `decoder.py` makes rows of them."""
