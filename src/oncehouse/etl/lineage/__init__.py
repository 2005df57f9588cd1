"""The lineage: topics as YAML declares them, checked as a whole, stored as a table, drawn as a tree or a picture.

It imports nothing else of the scheduler and asks no server, except for the table `Lineage`. Start in `topic.py` (one
line of the lineage), then `files.py` (from YAML to topics) and `graph.py` (which topic is made of which).
"""
