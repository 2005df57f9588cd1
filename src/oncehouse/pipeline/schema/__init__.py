"""Schemas of records: where they are found, what new versions bring, which fields they must have.

Also which identity rule a pipeline runs under while `oncehouse rekey` changes it (`identity_guard`). May import dedup
and what is below it. Start reading at `discovery.py`.
"""
