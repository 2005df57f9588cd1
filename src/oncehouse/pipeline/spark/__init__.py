"""What is Spark's own: the session, its executors and Python workers, tasks and the errors of jobs.

Imports no other package of the pipeline; `worker_daemon` alone loads the modules of the tasks. Start reading at
`session.py`.
"""
