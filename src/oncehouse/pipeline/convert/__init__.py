"""Conversion: any Arrow array into the Arrow type of a declared column, exact or marked as bad.

Start with `convert.py`. `scalars.py` has a function for each type; the rules are in `numbers.py`, `decimals.py` and
`times.py`. `value_errors.py` says why a value was marked. Knows no format and no file.
"""
