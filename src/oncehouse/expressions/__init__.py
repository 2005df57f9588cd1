"""SQL expressions over one event: checked and compiled on the driver, evaluated by DuckDB in the workers.

Start with `compiler.py` and `evaluator.py`. Imports `column_types` alone.
"""
