"""When topics run: what is due and why not, rounds over all topics, leases, late rows.

It imports every other package of the scheduler except the preflight. Start in `scheduler.py` (a round) and
`due_steps.py` (the decision).
"""
