"""What the pipeline has read, written and sent: a catalog in SQL and files in a folder or bucket.

Modules import downwards: `open` and `take_lease`, then `marks` and `stats`, `catalog`, `storage`, `models`; besides
these `config`, `common` and `errors`. Start with `models.py` (the values), then `catalog/database.py` (how a write is
fenced) and `catalog/registration.py` (how an epoch is settled).
"""
