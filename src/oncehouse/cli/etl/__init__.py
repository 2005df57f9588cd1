"""Commands of `oncehouse etl`: the lineage in ClickHouse, the scheduler, and what people change by hand.

Start in `app.py`, which lists the commands. `run.py` runs the scheduler and shows its plan, `status.py` and `log.py`
read, `topic_commands.py` changes one topic, `options.py` opens the settings file. The work is done in
`oncehouse.etl`.
"""
