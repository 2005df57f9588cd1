"""One INSERT of one batch: sent at most once, before its deadline, with a classified outcome.

Start with `insert_batch.py`; `outcome.py` lists the outcomes, `lost_answer.py` decides about a retry after an answer
was lost, `session_fence.py` stops late requests on the server. `repeatable_block.py` is shared with messaging and sync.
"""
