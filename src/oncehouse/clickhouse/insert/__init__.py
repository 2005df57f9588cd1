"""One INSERT of one batch: sent at most once, before its deadline, with a classified outcome.

Start with `insert_batch.py`; `outcome.py` lists the outcomes, `session_fence.py` stops late requests on the server.
"""
