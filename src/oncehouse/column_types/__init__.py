"""The column types of ClickHouse that oncehouse writes, and a parser of their names.

Imports `errors` alone. Start with `types.py`.
"""
