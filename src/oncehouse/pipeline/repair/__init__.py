"""`oncehouse repair`: brings back damaged files and a lost catalog from what the rest proves.

`repair_plan` decides what can be restored from which source, `file_restorer` and `catalog_restore` do it. Start reading
at `repair.py`.
"""
