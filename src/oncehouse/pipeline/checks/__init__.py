"""What can be known to be wrong before any data moves: findings for `oncehouse check`, errors for a run.

Nothing is created or changed on Kafka or ClickHouse here. Start reading at `preflight.py`; `startup.py` is what a
process does before it writes.
"""
