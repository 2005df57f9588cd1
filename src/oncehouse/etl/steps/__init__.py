"""One step of one topic: its range, its transform, its operations in order, and what they do to tables.

It imports quality, state and lineage, and does not know when a topic is due. Start in `step_planner.py` (what a step
consists of) and `operation_builder.py` (in which order, and why that is safe).
"""
