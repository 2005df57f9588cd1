"""Made-up events in the format of a pipeline: values of the declared types, and one writer for each format.

Imports `column_types`, `config` and the schemas of `pipeline/formats/`. Start with `factory.py`, then `values.py`.
"""
