"""The ClickHouse table of a sync: its DDL, the rows it holds for some keys, and how it compares with the database.

It imports model and changes. Start in `ddl.py`.
"""
