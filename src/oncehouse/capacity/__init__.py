"""What a pipeline will need: formulas over measured constants. No I/O, no Spark, no server.

Start in `find_machines.py` (`plan_capacity`), which calls `plan.py` for one number of machines; `inputs.py` has the
load and the machines, `constants.py` each measured figure with the command that prints it.
"""
