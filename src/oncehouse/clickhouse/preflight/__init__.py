"""Checks of servers, tables, views and grants before data moves. Each yields findings; none changes anything.

Start with `check.py`, which calls the others; `requirements.py` says what a pipeline needs of a table.
"""
