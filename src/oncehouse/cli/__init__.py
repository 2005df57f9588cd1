"""The command line: reads arguments, calls the packages that do the work, and shows what they return.

Start in `app.py`: it lists all commands and turns each failure into an exit code. Commands of a package are in the
folder of that name; `output.py` prints tables, facts and JSON; `arguments.py` has the arguments that commands share.
A record that `--json` prints is a frozen dataclass next to its command; `tools/cli_schema.py` writes their schema.
"""
