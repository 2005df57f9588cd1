"""The `shape:` section at work: rows are filtered, get computed columns, and are routed to tables.

Start with `transformer.py`, which runs in the workers by a plan that `plan_builder.py` makes on the driver.
"""
