"""The pipeline file and messaging's connections as frozen values: models, the loader, problems, cross-checks.

It reads files and knows no server. Start in `pipeline.py` (the sections) and `file_loader.py` (from YAML to values).
"""
