"""`oncehouse chaos`: the faults that a pipeline must survive, played over somebody's own pipeline file.

Everything happens on a private stack: the file's fields, identity, shape and tables are kept, its servers, ledger and
secrets are not touched. `playing.py` puts it together.
"""
