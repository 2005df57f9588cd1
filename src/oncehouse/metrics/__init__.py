"""Metrics for Prometheus: the list of names (`definitions.py`), samples of the monitor, and an HTTP endpoint.

Imports `oncehouse.monitoring`; prometheus_client only in `exposition.py` and `server.py`. Start at `collect.py`.
"""
