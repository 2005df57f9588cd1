"""Dead letters after they were written: how they are selected, read, edited and exported.

They are written by `ingest` and decoded again by `requests`. May import ingest and what is below it. Start reading at
`filter.py`.
"""
